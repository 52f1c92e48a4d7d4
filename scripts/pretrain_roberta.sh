#!/usr/bin/env bash
# Pre-train a RoBERTa encoder as a YAML of configs/ describes it.
# Options and help: pipeline/commands/training/pretrain_roberta.py; the work: pipeline/training/pretrain_roberta.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command training.pretrain_roberta "$@"
