#!/usr/bin/env bash
# Collect everything the set-up installs in one folder, for machines without network access.
#
# usage: scripts/wheelhouse.sh DIR
#
# Run it on a connected machine of the same kind (architecture and Python version); it sets up .venv there
# first, downloads torch and the pinned packages, adds the fairseq built for .venv, and writes DIR/*.whl with DIR/SHA256SUMS.
# Copy DIR and the project to the other machine and set up from it alone:
#
#   WHEELHOUSE=DIR ./scripts/quickstart.sh
#
# TORCH_SPEC= chooses the torch, such as torch==2.13.0+cu130 with PIP_EXTRA_INDEX_URL; PYTHON= the interpreter.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

only_a_folder "$@"
[[ ! -e $1 || -d $1 ]] || die "$1 is a file; name a new or empty folder"
mkdir -p -- "$1"
dir=$(cd -- "$1" && pwd -P)
part=$dir/.part # inside, since the folder may be on another disk
mark=$dir/.linear-attention-wheelhouse
if [[ ! -f $mark && -n $(ls -A -- "$dir") ]]; then
    die "$dir holds other files; name a new or empty folder"
fi
ensure_environment
: >"$mark"
rm -rf -- "$part"
mkdir -- "$part"
torch=$("$VENV_PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["torch"])' "$ROOT/.venv/ready.json")
echo "Collecting $torch and requirements.txt in $dir (log: $part/pip.log)"
wheels=$ROOT/.venv/wheels
"$VENV_PYTHON" -P "$ROOT/scripts/build_fairseq.py" "$wheels" 2>"$part/pip.log" >/dev/null ||
    die "fairseq could not be built; see $part/pip.log"
"$VENV_PYTHON" -m pip wheel --no-build-isolation --wheel-dir "$part" --log "$part/pip.log" --quiet \
    -c "$ROOT/requirements.txt" -r "$ROOT/requirements.txt" --find-links "$wheels" "$torch" ||
    die "pip could not collect them; see its message above and $part/pip.log"
"$VENV_PYTHON" -m pip download --no-deps --only-binary :all: --dest "$part" --log "$part/pip.log" --quiet \
    -r "$ROOT/scripts/uv.txt" 2>/dev/null || true # without it pip installs them
(cd -- "$part" && rm -f pip.log && sha256sum -- *.whl >SHA256SUMS)
if [[ -f $dir/SHA256SUMS ]]; then # the wheels of an earlier call, no others
    (cd -- "$dir" && cut -c67- SHA256SUMS | grep -vF / | tr '\n' '\0' | xargs -0r rm -f --)
fi
mv -- "$part"/*.whl "$dir"
mv -- "$part/SHA256SUMS" "$dir" # last: with it the folder is whole
rmdir -- "$part"
echo "$(wc -l <"$dir/SHA256SUMS") wheels, $(du -sh -- "$dir" | cut -f1), in $dir; set up with WHEELHOUSE=$dir"
