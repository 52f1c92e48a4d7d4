#!/usr/bin/env bash
# Images byte by byte: attentions x seeds, bits per dimension, a picture of samples.
# Options and help: pipeline/commands/studies/measure_images.py; the work: pipeline/studies/image_sweep.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.image_sweep "$@"
