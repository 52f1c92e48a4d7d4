#!/usr/bin/env bash
# Train on a task of Long Range Arena as a YAML of configs/lra_skyformer or configs/lra_state_space describes.
#
# usage: scripts/train_lra.sh CONFIG [DATA] [--encoder-attention PLAN] [--gpus N]
#                             [--nodes M --node-rank R --master ADDR[:PORT]]
#                             [--save-dir DIR] [--dry-run] [fairseq-train flags ...]
#
#   CONFIG        such as configs/lra_skyformer/listops.yaml
#   DATA          a folder made by data-prep/lra.sh (default: the one the YAML names)
#   --encoder-attention PLAN
#                 a mechanism for every layer, such as lln_diag, or a layer plan, such as diag,norm
#                 (default: softmax in lra_skyformer, diag,norm in lra_state_space)
#   --gpus N      GPUs to use on this machine (default: all; 0: the CPU, one process per node)
#   --nodes M     number of machines; start the same command on each, with its own
#   --node-rank R number (0 to M-1) and the address of machine 0 in
#   --master ADDR (port 29500 unless given)
#   --save-dir    where everything goes (default: runs/<preset>/<task>/<plan> in the project)
#   --dry-run     print the fairseq-train command and stop
#
# The YAML is turned into a plain fairseq-train command, which is printed. Flags of fairseq-train at the end
# overrule it. Whatever the number of GPUs, --update-freq is chosen such that the effective batch stays that
# of the YAML. Running the same command again resumes. checkpoint_best.pt is the best on valid; run.json
# records preset, attention, steps, seed and where the data come from.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module training.train_lra "$@"
