#!/usr/bin/env bash
# Prepare the small corpus that comes with Python; --help says how. pipeline/data/bundled_corpus.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_module data.bundled_corpus "$@"
