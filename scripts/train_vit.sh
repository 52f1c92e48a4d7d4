#!/usr/bin/env bash
# Train a Vision Transformer as a YAML of configs/vit describes it.
# Options and help: pipeline/commands/training/train_vit.py; the work: pipeline/training/train_vit.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command training.train_vit "$@"
