#!/usr/bin/env bash
# Bits per dimension, or accuracy, of a model of images.
# Options and help: pipeline/commands/evaluation/eval_images.py; the work: pipeline/evaluation/image_likelihood.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command evaluation.image_likelihood "$@"
