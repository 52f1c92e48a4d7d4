#!/usr/bin/env bash
# Prepare a text for pre-training RoBERTa models; --help says how. roberta.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/run.sh"

run_script roberta.py "$@"
