#!/usr/bin/env bash
# Train and evaluate the small WikiText-2 language models whose results stand in results/.
#
# usage: scripts/measure_lm.sh [--from FOLDER] [--only NAME] [--updates N] [--out DIR]
#
#   --from FOLDER   WikiText-2 as published (wiki.train.tokens, ..., plain or .gz); without it the
#                   corpus is downloaded. Not needed again once the data are prepared.
#   --only NAME     one architecture, such as transnormer_t1, or one run, such as transnormer_t1-seed2
#   --updates N     train for N updates instead of those of the YAML (needs another --out)
#   --out DIR       where the results go, one JSON a run (default: results/measured/wikitext2)
#
# Trains configs/wikitext2/*.yaml with scripts/train_lm.sh's code on all GPUs, or on the CPU without
# one, and evaluates the best checkpoint on the valid and test splits with scripts/eval_ppl.sh's.
# What has a result is skipped, and an interrupted run goes on from its last checkpoint: run the same
# command again, also on another day. In the end the tables and curves of results/ are made anew.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module studies.language_models "$@"
