#!/usr/bin/env bash
# Train on a task of Long Range Arena as a YAML of configs/lra_skyformer or configs/lra_state_space describes.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
