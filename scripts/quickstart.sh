#!/usr/bin/env bash
# From nothing to a table: set-up, a small corpus, three language models trained and compared.
#
# usage: scripts/quickstart.sh [--updates N] [--runs DIR] [--fresh]
#
#   --updates N   train each model for N updates instead of those of configs/quickstart/base.yaml
#   --runs DIR    where everything goes (default: runs/quickstart in the project,
#                 runs/quickstart-N with --updates N)
#   --fresh       remove the runs of this command that are there, naming each, and start again
#
# Makes .venv (PYTHON= and TORCH_SPEC= choose interpreter and torch), prepares the English text that
# comes with Python, trains transnormer_t1, transnormer_t2 and fairseq's transformer_lm with equal
# budgets, evaluates each, and lets the first one continue three prompts. At most ten minutes on two
# cores. Interrupt it as you like: the same command goes on where it was, and prints the table again
# when everything is done.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module studies.quickstart "$@"
