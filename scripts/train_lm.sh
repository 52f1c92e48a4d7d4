#!/usr/bin/env bash
# Train a language model as a YAML of configs/ describes it.
#
# usage: scripts/train_lm.sh CONFIG [DATA] [--gpus N] [--nodes M --node-rank R --master ADDR[:PORT]]
#                            [--save-dir DIR] [--dry-run] [fairseq-train flags ...]
#
#   CONFIG        such as configs/wikitext103/transnormer_t1.yaml
#   DATA          a folder made by data-prep/ (default: the one the YAML names)
#   --gpus N      GPUs to use on this machine (default: all; 0: the CPU, one process a node)
#   --nodes M     number of machines; start the same command on each, with its own
#   --node-rank R number (0 to M-1) and the address of machine 0 in
#   --master ADDR (port 29500 unless given)
#   --save-dir    where everything goes (default: runs/<experiment>/<architecture> in the project)
#   --dry-run     print the fairseq-train command and stop
#
# The YAML is turned into a plain fairseq-train command, which is printed. Flags of fairseq-train at
# the end overrule it. Whatever the number of GPUs, --update-freq is chosen such that the effective
# batch stays that of the YAML. Running the same command again goes on from the last checkpoint.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module training.train "$@"
