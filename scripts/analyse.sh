#!/usr/bin/env bash
# What attention does: the analyses and figures of TransNormer and LLN.
# Options and help: pipeline/commands/studies/analyse.py; the work: pipeline/studies/analyse.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
if wants_help "$@"; then
    exec_module "$(any_python)" commands.show_help studies.analyse "$@"
fi
run_command studies.analyse "$@"
