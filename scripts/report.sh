#!/usr/bin/env bash
# Write one HTML page about runs.
# Options and help: pipeline/commands/studies/report.py; the work: pipeline/studies/report/report.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.report.report "$@"
