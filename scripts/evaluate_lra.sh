#!/usr/bin/env bash
# Accuracy of a model of Long Range Arena.
# Options and help: pipeline/commands/evaluation/evaluate_lra.py; the work: pipeline/evaluation/lra.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command evaluation.lra "$@"
