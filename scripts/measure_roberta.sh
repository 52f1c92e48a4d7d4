#!/usr/bin/env bash
# Pre-train the small encoders of results/README.md, and fine-tune the papers' own methods among them.
# Options and help: pipeline/commands/studies/measure_roberta.py; the work: pipeline/studies/encoders.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.encoders "$@"
