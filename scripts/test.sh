#!/usr/bin/env bash
# Run all tests.
#
# usage: scripts/test.sh [pytest arguments]
#
#   scripts/test.sh                       everything
#   scripts/test.sh tests/operator -x     one folder, stop at the first failure
#   scripts/test.sh -m 'not slow'         the quick ones
#
# Makes .venv first if it is not there (PYTHON= and TORCH_SPEC= choose interpreter and torch).
# Tests that need a GPU or reference data are skipped without them, each with its reason.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

begin_tests "$@"
run_tests 2 "$@" # two processes more than cores, since tests wait for the commands they start
