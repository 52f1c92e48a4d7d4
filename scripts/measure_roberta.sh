#!/usr/bin/env bash
# Pre-train the small encoders whose results stand in results/, and fine-tune the papers' own methods among them.
#
# usage: scripts/measure_roberta.sh --glue DIR [--from FOLDER] [--only NAME] [--pretrain-only]
#                                   [--updates N --out DIR]
#
#   --glue DIR        GLUE as published: a folder each for MRPC, CoLA and SST-2 with train.tsv and dev.tsv
#   --from FOLDER     WikiText-2 as published (wiki.train.tokens, ..., plain or .gz); without it the corpus is
#                     downloaded. Not needed again once the data are prepared.
#   --only NAME       one configuration of configs/roberta_wikitext2, such as lln_diag
#   --pretrain-only   stop before GLUE, which the next run without it does
#   --updates N       pre-train for N updates instead of those of the YAML (needs another --out)
#   --out DIR         where the results go, one JSON an encoder (default: results/measured/roberta_wikitext2)
#
# Trains configs/roberta_wikitext2/*.yaml with the code of scripts/pretrain_roberta.sh and evaluates them with
# that of scripts/eval_mlm.sh. softmax, transnormer_t1, transnormer_t2, lln, lln_diag and linear are then
# fine-tuned as configs/roberta_wikitext2_glue.yaml says, with the code of scripts/finetune_glue.sh. What has a result is skipped, and an interrupted run goes on from its last
# checkpoint: run the same command again. In the end the tables and curves of results/ are made anew.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module studies.encoders "$@"
