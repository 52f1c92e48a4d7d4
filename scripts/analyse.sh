#!/usr/bin/env bash
# What attention does: the analyses and figures of TransNormer and LLN.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
if wants_help "$@"; then
    help_of_command "$@"
fi
run_command "$@"
