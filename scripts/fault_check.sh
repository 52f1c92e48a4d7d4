#!/usr/bin/env bash
# Break training runs in many ways and check that each resumes.
# Options and help: pipeline/commands/studies/fault_check.py; the work: pipeline/studies/fault_check.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.fault_check "$@"
