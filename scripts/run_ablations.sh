#!/usr/bin/env bash
# Pre-train the encoders of TransNormer's ablations and compare their perplexities with the paper's.
# Options and help: pipeline/commands/studies/run_ablations.py; the work: pipeline/studies/ablations.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.ablations "$@"
