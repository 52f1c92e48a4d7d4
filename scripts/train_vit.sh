#!/usr/bin/env bash
# Train a Vision Transformer as a YAML of configs/vit describes it.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
