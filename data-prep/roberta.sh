#!/usr/bin/env bash
# Prepare a text for pre-training RoBERTa models; --help says how. pipeline/data/masked_lm.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_module data.masked_lm "$@"
