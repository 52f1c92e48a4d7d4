#!/usr/bin/env bash
# Train and evaluate the small WikiText-2 language models of results/README.md.
# Options and help: pipeline/commands/studies/measure_lm.py; the work: pipeline/studies/language_models.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command studies.language_models "$@"
