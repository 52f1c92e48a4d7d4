#!/usr/bin/env bash
# Draw images from a model byte by byte, or complete test images.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
