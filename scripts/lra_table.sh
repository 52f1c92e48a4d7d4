#!/usr/bin/env bash
# Long Range Arena: tasks x attentions x seeds, and the table beside the papers'.
# Options and help: pipeline/commands/studies/lra_table.py; the work: pipeline/studies/lra_sweep.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.lra_sweep "$@"
