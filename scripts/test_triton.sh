#!/usr/bin/env bash
# Run the tests of the Triton kernels, without a GPU through Triton's interpreter and compiler.
#
# usage: scripts/test_triton.sh [pytest arguments]
#
# Where .venv has no triton, installs tests/operator/triton/requirements.txt (286 MB, 1 GB on disk) into
# .venv-triton the first time, from the folder WHEELHOUSE if that is set. scripts/test.sh skips these tests.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

if wants_help "$@"; then
    print_header
    exit 0
fi
ensure_environment
cd -- "$ROOT"
LIST=tests/operator/triton/requirements.txt
if ! "$VENV_PYTHON" -c 'import importlib.util as u; exit(u.find_spec("triton") is None)'; then
    if ! cmp -s "$LIST" .venv-triton/requirements.txt; then
        echo "Installing $LIST into .venv-triton"
        rm -rf .venv-triton .venv-triton.part
        offline=()
        [[ -z ${WHEELHOUSE:-} ]] || offline=(--no-index --find-links "$WHEELHOUSE")
        "$VENV_PYTHON" -m pip install --quiet --no-deps --target .venv-triton.part -r "$LIST" "${offline[@]}" ||
            die "pip could not install $LIST; see its message above"
        cp "$LIST" .venv-triton.part/
        mv .venv-triton.part .venv-triton
    fi
    export PYTHONPATH="$ROOT/.venv-triton${PYTHONPATH:+:$PYTHONPATH}"
fi
"$VENV_PYTHON" -c 'import torch; exit(torch.cuda.is_available())' && export TRITON_INTERPRET=1
exec "$VENV_PYTHON" -m pytest -n 0 tests/operator/triton "$@"
