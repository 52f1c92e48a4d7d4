#!/usr/bin/env bash
# Prepare the GLUE tasks for fine-tuning RoBERTa models; --help says how.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_command "$@"
