#!/usr/bin/env bash
# Train a model of images as a YAML of configs/images describes it.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
