#!/usr/bin/env bash
# Masked-LM perplexity of a pre-trained encoder.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
