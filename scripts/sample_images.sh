#!/usr/bin/env bash
# Draw images from a model byte by byte, or complete test images.
# Options and help: pipeline/commands/evaluation/sample_images.py; the work: pipeline/evaluation/sample_images.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command evaluation.sample_images "$@"
