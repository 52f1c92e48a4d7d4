#!/usr/bin/env bash
# Accuracy of a model of Long Range Arena.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
