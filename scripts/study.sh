#!/usr/bin/env bash
# An experiment that a YAML of configs/studies, or your own, declares.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
