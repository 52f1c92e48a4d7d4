#!/usr/bin/env bash
# Prepare the GLUE tasks for fine-tuning RoBERTa models; --help says how. glue.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/run.sh"

run_script glue.py "$@"
