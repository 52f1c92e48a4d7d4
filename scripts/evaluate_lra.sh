#!/usr/bin/env bash
# Accuracy of a model of Long Range Arena.
#
# usage: scripts/evaluate_lra.sh CHECKPOINT DATA [--split SPLIT] [--out FILE]
#
#   CHECKPOINT   of scripts/train_lra.sh; checkpoint_best.pt is the best on valid
#   DATA         the folder made by data-prep/lra.sh
#   --split      train, valid or test (default: test)
#   --out FILE   where the result goes (default: <checkpoint>.<split>.json beside the checkpoint)
#
# Every example counts, also those of an incomplete batch. The result, with preset, attention, steps, seed and
# the origin of the data, is printed and written as JSON.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module evaluation.lra "$@"
