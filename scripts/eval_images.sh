#!/usr/bin/env bash
# Bits per dimension, or accuracy, of a model of images.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
