#!/usr/bin/env bash
# An experiment that a YAML of configs/studies, or your own, declares.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

if [[ $# -gt 1 && $1 != -* ]]; then # the help of a study names its axes, which are read in .venv
    ensure_environment
    exec_command "$VENV_PYTHON" "$@"
fi
run_command "$@"
