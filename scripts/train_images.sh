#!/usr/bin/env bash
# Train a model of images as a YAML of configs/images describes it.
# Options and help: pipeline/commands/training/train_images.py; the work: pipeline/training/train_images.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command training.train_images "$@"
