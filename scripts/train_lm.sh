#!/usr/bin/env bash
# Train a language model as a YAML of configs/ describes it.
# Options and help: pipeline/commands/training/train_lm.py; the work: pipeline/training/train.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command training.train "$@"
