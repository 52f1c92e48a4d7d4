#!/usr/bin/env bash
# Prepare the tasks of the Long Range Arena; --help says how.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_command "$@"
