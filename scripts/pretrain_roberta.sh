#!/usr/bin/env bash
# Pre-train a RoBERTa encoder as a YAML of configs/ describes it.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
