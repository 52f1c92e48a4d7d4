#!/usr/bin/env bash
# Export a model for transformers.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
