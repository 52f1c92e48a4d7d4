#!/usr/bin/env bash
# From nothing to a table: set-up, a small corpus, three language models trained and compared.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
