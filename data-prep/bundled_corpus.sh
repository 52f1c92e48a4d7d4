#!/usr/bin/env bash
# Prepare the small corpus that comes with Python; --help says how. bundled_corpus.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/run.sh"

run_script bundled_corpus.py "$@"
