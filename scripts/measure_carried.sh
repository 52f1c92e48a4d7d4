#!/usr/bin/env bash
# Language models trained with and without carried state: a table and curves.
# Options and help: pipeline/commands/studies/measure_carried.py; the work: pipeline/studies/carried_training.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.carried_training "$@"
