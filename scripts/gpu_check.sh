#!/usr/bin/env bash
# Check and measure this project on a machine with an NVIDIA GPU, in two commands of under ten minutes.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
if wants_help "$@"; then
    help_of_command --help
fi
python=${PYTHON:-$VENV_PYTHON}
[[ -x $python || -n ${PYTHON:-} ]] || python=python3
export PYTHONSAFEPATH=1 # no package of the user's own directory comes first
"$python" -c 'import torch' 2>/dev/null || {
    printf 'error: %s has no torch, and so no GPU; name one that has in PYTHON\n' "$python" >&2
    exit 2
}
"$python" -c 'import setuptools; exit(int(setuptools.__version__.split(".")[0]) < 77)' 2>/dev/null || {
    printf 'error: %s needs setuptools 77 or later to build the kernels; run %s -m pip install -U setuptools\n' \
        "$python" "$python" >&2
    exit 2
}
"$python" -c 'import pytest, hypothesis' 2>/dev/null || {
    printf 'error: %s has no pytest or no hypothesis; run %s -m pip install pytest hypothesis\n' "$python" "$python" >&2
    exit 2
}
exec_command "$python" "$@"
