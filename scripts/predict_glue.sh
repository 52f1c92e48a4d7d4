#!/usr/bin/env bash
# Predictions of a fine-tuned encoder for a file of its GLUE task.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
