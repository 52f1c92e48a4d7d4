#!/usr/bin/env bash
# Bring the documents up to date with the committed results.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
