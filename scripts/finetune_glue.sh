#!/usr/bin/env bash
# Fine-tune an encoder on GLUE: every task, learning rate and seed, and a table beside the papers'.
# It runs the study configs/studies/glue.yaml (docs/studies.md) from a checkpoint.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
