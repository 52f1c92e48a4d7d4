#!/usr/bin/env bash
# Train a language model as a YAML of configs/ describes it.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
