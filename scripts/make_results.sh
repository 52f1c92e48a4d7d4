#!/usr/bin/env bash
# Generate the tables and learning curves of the documents from results/measured/ and results/paper/.
# Options and help: pipeline/commands/reports/make_results.py; the work: pipeline/reports/documents.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command reports.documents "$@"
