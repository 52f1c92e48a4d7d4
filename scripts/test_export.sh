#!/usr/bin/env bash
# Run the tests of exported models, which need transformers.
#
# usage: scripts/test_export.sh [pytest arguments]
#
# Installs tests/pipeline/export/requirements.txt into .venv-export the first time, beside .venv, which stays
# as it is. scripts/test.sh runs the same tests once that folder is there, and skips them before.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

if wants_help "$@"; then
    print_header
    exit 0
fi
ensure_environment
cd -- "$ROOT"
LIST=tests/pipeline/export/requirements.txt
if ! cmp -s "$LIST" .venv-export/requirements.txt; then
    echo "Installing $LIST into .venv-export"
    rm -rf .venv-export .venv-export.part
    "$VENV_PYTHON" -m pip install --quiet --target .venv-export.part -r "$LIST" -c requirements.txt ||
        die "pip could not install $LIST; see its message above"
    cp "$LIST" .venv-export.part/
    mv .venv-export.part .venv-export
fi
exec "$VENV_PYTHON" -m pytest -n 0 tests/pipeline/export "$@"
