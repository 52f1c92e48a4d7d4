#!/usr/bin/env bash
# Prepare WikiText-2 or WikiText-103 for fairseq; --help says how.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_command "$@"
