#!/usr/bin/env bash
# Perplexity of a trained language model on a prepared corpus, as fairseq-eval-lm computes it.
#
# usage: scripts/eval_ppl.sh CHECKPOINT DATA [--split SPLIT[,SPLIT]] [--context-window N]
#                            [--out FILE] [fairseq-eval-lm flags ...]
#
#   CHECKPOINT           such as runs/wikitext103/transnormer_t1/checkpoint_best.pt
#   DATA                 a folder made by data-prep/, with the dictionary of the training
#   --split              valid, test (the default), train, or several with commas
#   --context-window N   let every token see at least N earlier ones (slower; published figures often do)
#   --out FILE           where the JSON goes (default: <checkpoint>.<split>.json beside the checkpoint)
#
# Printed and written: loss in bits and nats per token, perplexity per token and per word (a word is
# what white space separates in the raw text, plus one end-of-line a line), and how many tokens were
# counted. Evaluating no token at all is an error.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module evaluation.perplexity "$@"
