#!/usr/bin/env bash
# Average the weights of checkpoints; --help says how.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
