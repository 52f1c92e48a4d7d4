#!/usr/bin/env bash
# Build the kernels on a machine with an NVIDIA GPU, check and measure them there, within 9 minutes.
#
# usage: scripts/gpu_check.sh OUT_DIR [--data BINARISED]
#
# Parts: build, info, the CUDA tests, the operator's speed, the models' cost and, with --data, a short
# bf16 training of transnormer_t1, transnormer_t2 and transformer_lm on equal budgets. Each part's log (and
# JSON) is in OUT_DIR as soon as it ends; one that fails or takes too long does not stop the next.
# PYTHON names the interpreter (default: .venv's, else python3); nothing is downloaded.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
help_if_asked "$@"
python=${PYTHON:-$VENV_PYTHON}
[[ -x $python || -n ${PYTHON:-} ]] || python=python3
cd -- "$ROOT"
"$python" -c 'import torch' 2>/dev/null || {
    printf 'error: %s has no torch, and so no GPU; name one that has in PYTHON\n' "$python" >&2
    exit 2
}
exec "$python" -m pipeline.studies.gpu_check "$@"
