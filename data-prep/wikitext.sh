#!/usr/bin/env bash
# Prepare WikiText-2 or WikiText-103 for fairseq; --help says how. pipeline/data/wikitext.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_module data.wikitext "$@"
