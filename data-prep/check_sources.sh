#!/usr/bin/env bash
# Ask whether the corpora can still be downloaded; --help says how. pipeline/data/check_sources.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_module data.check_sources "$@"
