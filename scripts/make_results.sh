#!/usr/bin/env bash
# Generate the tables and learning curves of the documents from results/measured/ and results/paper/.
#
# usage: scripts/make_results.sh [--check]
#
#   --check   write nothing; fail if a table or plot is out of date
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

help_if_asked "$@"
run_module reports.documents "$@"
