#!/usr/bin/env bash
# Prepare the small corpus that comes with Python; --help says how.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_command "$@"
