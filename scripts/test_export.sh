#!/usr/bin/env bash
# Run the tests beside other libraries: exported models in transformers, the operator beside ONNX and
# flash-linear-attention.
#
# usage: scripts/test_export.sh [pytest arguments]
#
# Installs tests/lab/export/requirements.txt into .venv-export the first time, beside .venv, which stays
# as it is. scripts/test.sh runs those of exported models once that folder is there, and skips them before.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

begin_tests "$@"
install_beside .venv-export tests/lab/export/requirements.txt --no-deps
export PYTHONPATH="$ROOT/.venv-export${PYTHONPATH:+:$PYTHONPATH}"
run_tests 0 tests/lab/export tests/operator/test_onnx.py tests/operator/test_decays.py::test_the_operator_of_onnx \
    tests/operator/test_decays.py::test_definitions_of_flash_linear_attention "$@"
