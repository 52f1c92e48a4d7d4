#!/usr/bin/env bash
# Run the tests.
#
# usage: scripts/test.sh [--all | pytest arguments]
#
#   scripts/test.sh                       all but the exhaustive ones
#   scripts/test.sh --all                 everything
#   scripts/test.sh tests/operator -x     everything in one folder, stop at the first failure
#   scripts/test.sh -m 'not slow'         the quick ones
#
# The exhaustive tests are for changes of kernels (the CUDA kernels without a GPU, the sanitizers), and further cases
# of other tests: every architecture trains, more models compile, quickstart and notebook run.
# Makes .venv first if it is not there (PYTHON= and TORCH_SPEC= choose interpreter and torch).
# Tests that need a GPU or reference data are skipped without them, each with its reason.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

begin_tests "$@"
case ${1-} in
    '') set -- -m 'not exhaustive' ;;
    --all) shift ;;
esac
run_tests 2 "$@" # two processes more than cores, since tests wait for the commands they start
