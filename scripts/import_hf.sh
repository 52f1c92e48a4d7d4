#!/usr/bin/env bash
# Turn RoBERTa weights of transformers into a checkpoint.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
