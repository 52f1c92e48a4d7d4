#!/usr/bin/env bash
# The copy task: attentions x seeds, a table and learning curves.
# Options and help: pipeline/commands/studies/measure_copy.py; the work: pipeline/studies/copy_sweep.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.copy_sweep "$@"
