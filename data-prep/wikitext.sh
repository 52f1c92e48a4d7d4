#!/usr/bin/env bash
# Prepare WikiText-2 or WikiText-103 for fairseq; --help says how. wikitext.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/run.sh"

run_script wikitext.py "$@"
