#!/usr/bin/env bash
# Run the tests of exported models, which need transformers.
#
# usage: scripts/test_export.sh [pytest arguments]
#
# Installs tests/lab/export/requirements.txt into .venv-export the first time, beside .venv, which stays
# as it is. scripts/test.sh runs the same tests once that folder is there, and skips them before.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

begin_tests "$@"
install_beside .venv-export tests/lab/export/requirements.txt --no-deps
run_tests 0 tests/lab/export "$@"
