"""The CPU kernels without Python: under the address and the undefined-behaviour sanitizer, with the oldest
compiler, and on aarch64."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from build_kernels import ISA_FLAGS, PER_SET, TORCH_TARGET
from tests.helpers.once import filled_once

COMPILER = shutil.which("g++") or shutil.which("clang++")
OLDEST = shutil.which("g++-11")
ARM = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# Optimised, they would take longer to compile than they save.
SANITIZED = ["-std=c++20", "-O0", "-fPIC", "-pthread", *SANITIZERS]
TORCH_HEADERS = [
    x
    for y in ("include", "include/torch/csrc/api/include")
    for x in ("-isystem", str(Path(torch.__file__).parent / y))
]


def is_binding(source: Path) -> bool:
    """Whether it needs torch."""
    return source.name.endswith("bindings.cpp")


def compile_all(folder: Path, sources: list[Path], *options: str) -> list[str]:
    """The objects of some sources, with the sanitizers in them."""

    def compiled(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        flags = [*SANITIZED, *options, *ISA_FLAGS.get(source.name, [])]
        subprocess.run([COMPILER, *flags, "-c", str(source), "-o", target], check=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compiled, sources))


@pytest.fixture(scope="module")
def kernels(root, tmp_path_factory) -> list[str]:
    """The objects of the kernels alone."""
    sources = sorted((root / "causal_linear_attention" / "csrc" / "cpu").glob("*.cpp"))
    sources = [source for source in sources if not is_binding(source)]
    folder = filled_once(tmp_path_factory, "sanitized kernels", partial(compile_all, sources=sources))
    return [str(folder / f"{source.stem}.o") for source in sources]


@pytest.mark.longest
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_kernels_under_sanitizers(root, tmp_path, kernels):
    program = str(tmp_path / "check_kernels")
    include = f"-I{root / 'causal_linear_attention' / 'csrc' / 'cpu'}"
    source = str(root / "tests" / "cpp" / "check_kernels.cpp")
    subprocess.run([COMPILER, *SANITIZED, include, source, *kernels, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.longest
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not ARM or not EMULATOR, reason="needs g++-aarch64-linux-gnu and qemu-user")
def test_kernels_on_aarch64(root, tmp_path):
    kernels = root / "causal_linear_attention" / "csrc" / "cpu"
    sources = [x for x in kernels.glob("*.cpp") if not is_binding(x) and x.name not in ISA_FLAGS]
    flags = ["-std=c++20", "-O1", "-pthread", "-static", f"-I{kernels}"]
    program = str(tmp_path / "check_kernels")
    checks = str(root / "tests" / "cpp" / "check_kernels.cpp")
    subprocess.run([ARM, *flags, checks, *map(str, sources), "-o", program], check=True)
    done = subprocess.run([EMULATOR, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def sanitizer_runtimes() -> list[str]:
    """The library that Python must load first; empty if the compiler has none."""
    names = [] if COMPILER is None or "g++" not in COMPILER else ["libasan.so", "libubsan.so"]
    find = partial(subprocess.run, capture_output=True, text=True, check=True)
    paths = [find([COMPILER, f"-print-file-name={name}"]).stdout.strip() for name in names]
    return paths if all(map(os.path.isabs, paths)) else []


@pytest.mark.longest
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not sanitizer_runtimes(), reason="g++ has no runtime of the sanitizers")
def test_operators_under_sanitizers(root, tmp_path, kernels):
    """Through torch: what the bindings check, allocate and pass on."""
    package = tmp_path / "causal_linear_attention"
    shutil.copytree(
        root / package.name, package, ignore=shutil.ignore_patterns("*.so", "_build.json", "cuda")
    )
    bindings = [source for source in (package / "csrc" / "cpu").glob("*.cpp") if is_binding(source)]
    objects = [*kernels, *compile_all(tmp_path, bindings, TORCH_TARGET, *TORCH_HEADERS)]
    link = [COMPILER, "-shared", *SANITIZERS, *objects, f"-L{Path(torch.__file__).parent / 'lib'}"]
    subprocess.run([*link, "-ltorch", "-ltorch_cpu", "-o", str(package / "_cpu.so")], check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(sanitizer_runtimes()),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": f"{tmp_path}:{root}",
    }
    program = [sys.executable, str(root / "tests" / "cpp" / "sanitized.py")]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and int(done.stdout) > 300, done.stdout + done.stderr


@pytest.mark.exhaustive
@pytest.mark.skipif(COMPILER is None, reason="no g++")
@pytest.mark.parametrize("name", [f"{PER_SET}baseline.cpp", *ISA_FLAGS])
def test_instruction_sets_share_no_function(root, tmp_path, name):
    source = root / "causal_linear_attention" / "csrc" / "cpu" / name
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", *ISA_FLAGS.get(name, [])]
    compiled = str(tmp_path / "kernels.o")
    subprocess.run([OLDEST or COMPILER, *flags, "-c", str(source), "-o", compiled], check=True)
    symbols = subprocess.run(["nm", compiled], capture_output=True, text=True, check=True).stdout.split("\n")
    shared = [line for line in symbols if " W " in line]
    assert not shared, "the linker may give one instruction set the function of another"


@pytest.mark.skipif(OLDEST is None, reason="no g++-11, the oldest compiler that is supported")
def test_the_oldest_compiler_takes_the_other_sources(root):
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", TORCH_TARGET, *TORCH_HEADERS]
    sources = [x for x in (root / "causal_linear_attention/csrc/cpu").glob("*.cpp") if PER_SET not in x.name]
    assert len(sources) >= 6
    subprocess.run([OLDEST, *flags, *map(str, sources)], check=True)
