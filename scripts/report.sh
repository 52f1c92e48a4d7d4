#!/usr/bin/env bash
# Write one HTML page about runs.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
