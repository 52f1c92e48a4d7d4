#!/usr/bin/env bash
# Predictions of a fine-tuned encoder for a file of its GLUE task.
#
# usage: scripts/predict_glue.sh CHECKPOINT --task TASK --input TSV [--out FILE]
#
#   CHECKPOINT   what scripts/finetune_glue.sh has kept, such as .../CoLA/lr3e-05-seed1/checkpoint_best.pt;
#                dictionary and tokeniser lie beside it
#   --task       the task it is fine-tuned for, such as CoLA
#   --input      a file in the layout of the task's train.tsv, dev.tsv or test.tsv (.gz as well)
#   --out        where the predictions go, in the form of GLUE's server: index, prediction
#                (default: <name of the input>.<task>.predictions.tsv in the current folder)
#
# If the file has labels, the task's metrics are printed, too.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module evaluation.predict_glue "$@"
