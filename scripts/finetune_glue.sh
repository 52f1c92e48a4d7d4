#!/usr/bin/env bash
# Fine-tune an encoder on GLUE: every task, learning rate and seed, and a table beside the papers'.
# Options and help: pipeline/commands/studies/finetune_glue.py; the work: pipeline/studies/glue_sweep.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.glue_sweep "$@"
