#!/usr/bin/env bash
# Predictions of a fine-tuned encoder for a file of its GLUE task.
# Options and help: pipeline/commands/evaluation/predict_glue.py; the work: pipeline/evaluation/predict_glue.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command evaluation.predict_glue "$@"
