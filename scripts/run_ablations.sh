#!/usr/bin/env bash
# Pre-train the encoders of TransNormer's ablations, and put their perplexities beside the paper's.
#
# usage: scripts/run_ablations.sh ABLATION|all [--data DATA] [--gpus N] [--out DIR] [fairseq-train flags ...]
#
#   ABLATION     a folder of configs/: ablation_01_scaling, ablation_03_dilution, ablation_08_proportion,
#                ablation_09_order, ablation_10_ffn, ablation_11_block_size, ablation_12_combination
#   --data DATA  a folder made by data-prep/roberta.sh (default: the one the YAMLs name)
#   --gpus N     GPUs to use (default: all; 0: the CPU)
#   --out DIR    where runs and tables go (default: runs/)
#
# Flags at the end go to every fairseq-train, such as --max-update 1000. A configuration with a result is
# skipped, an interrupted one goes on from its last checkpoint, and one that fails (1+elu without scaling
# may diverge) does not stop the others. The table is printed and written to DIR/ABLATION/table.md.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module studies.ablations "$@"
