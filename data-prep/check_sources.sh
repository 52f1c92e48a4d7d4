#!/usr/bin/env bash
# Ask whether the corpora can still be downloaded; --help says how.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_command "$@"
