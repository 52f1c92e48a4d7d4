#!/usr/bin/env bash
# Break training runs in many ways and check that each resumes.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
