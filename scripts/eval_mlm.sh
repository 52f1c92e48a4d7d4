#!/usr/bin/env bash
# Masked-LM perplexity of a pre-trained encoder.
#
# usage: scripts/eval_mlm.sh CHECKPOINT DATA [--split SPLIT[,SPLIT...]]
#
#   CHECKPOINT   of scripts/pretrain_roberta.sh
#   DATA         the folder made by data-prep/roberta.sh
#   --split      train, valid or test, several with commas (default: test)
#
# 15 % of the tokens are masked as in training, the same ones whatever the encoder. The result is printed
# and written beside the checkpoint as <checkpoint>.<split>.json.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module evaluation.masked_lm "$@"
