#!/usr/bin/env bash
# Masked-LM perplexity of a pre-trained encoder.
# Options and help: pipeline/commands/evaluation/eval_mlm.py; the work: pipeline/evaluation/masked_lm.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command evaluation.masked_lm "$@"
