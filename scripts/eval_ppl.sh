#!/usr/bin/env bash
# Perplexity of a trained language model on a prepared corpus, as fairseq-eval-lm computes it.
# Options and help: pipeline/commands/evaluation/eval_ppl.py; the work: pipeline/evaluation/perplexity.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command evaluation.perplexity "$@"
