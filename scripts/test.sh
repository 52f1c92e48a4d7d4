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
# Two processes more than cores, since tests wait for the commands they start; one thread each. -n 0 runs all in one.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
workers=$(($(env -u OMP_NUM_THREADS nproc) + 2))
exec "$VENV_PYTHON" -m pytest -n $((workers < 6 ? workers : 6)) --dist worksteal "$@"
