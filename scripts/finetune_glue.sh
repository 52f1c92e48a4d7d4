#!/usr/bin/env bash
# Fine-tune an encoder on GLUE: every task, learning rate and seed, and a table beside the papers'.
#
# usage: scripts/finetune_glue.sh CHECKPOINT [--task TASK[,TASK...]|all] [--data DIR] [--out DIR]
#                                 [--learning-rates A,B,...] [--seeds A,B,...] [--max-update N] [--jobs N]
#
#   CHECKPOINT         of scripts/pretrain_roberta.sh, or of fairseq's RoBERTa
#   --task             CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, several with commas, or all
#                      that are prepared (default: all)
#   --data DIR         made by data-prep/glue.sh with the encoder's tokeniser (default: data/glue)
#   --out DIR          where runs and results go (default: glue/<checkpoint> beside the checkpoint)
#   --learning-rates,  instead of those of configs/glue_sweep.yaml
#   --seeds
#   --max-update N     stop each run after N updates instead of the epochs of configs/glue/finetune.yaml
#   --jobs N           runs side by side (default: the GPUs there are, each with one; without any, 1)
#
# The best learning rate of each task is that with the best mean over the seeds on the dev set, as in the
# papers. Results: glue.json and glue.md in --out, a log a run in its folder; of each task the weights of
# the best run are kept. Run the same command again after an interruption, even a kill: finished runs
# are skipped, the others go on from their last epoch.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module studies.glue_sweep "$@"
