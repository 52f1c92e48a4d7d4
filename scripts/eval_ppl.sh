#!/usr/bin/env bash
# Perplexity of a trained language model on a prepared corpus, as fairseq-eval-lm computes it.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command "$@"
