#!/usr/bin/env bash
# LLN's vision experiments: attentions x seeds, a table and curves.
# Options and help: pipeline/commands/studies/measure_vit.py; the work: pipeline/studies/vit_sweep.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.vit_sweep "$@"
