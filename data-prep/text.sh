#!/usr/bin/env bash
# Prepare a text of your own for language models; --help says how.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_command "$@"
