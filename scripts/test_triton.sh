#!/usr/bin/env bash
# Run the tests of the Triton kernels, without a GPU through Triton's interpreter and compiler.
#
# usage: scripts/test_triton.sh [pytest arguments]
#
# Where .venv has no triton, installs tests/operator/triton/requirements.txt (286 MB, 1 GB on disk) into
# .venv-triton the first time, from the folder WHEELHOUSE if that is set. scripts/test.sh skips these tests.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

begin_tests "$@"
if ! "$VENV_PYTHON" -c 'import importlib.util as u; exit(u.find_spec("triton") is None)'; then
    offline=()
    [[ -z ${WHEELHOUSE:-} ]] || offline=(--no-index --find-links "$WHEELHOUSE")
    install_beside .venv-triton tests/operator/triton/requirements.txt --no-deps "${offline[@]}"
    export PYTHONPATH="$ROOT/.venv-triton${PYTHONPATH:+:$PYTHONPATH}"
fi
"$VENV_PYTHON" -c 'import torch; exit(torch.cuda.is_available())' && export TRITON_INTERPRET=1
run_tests 0 tests/operator/triton tests/modules/test_fused_loss.py "$@"
