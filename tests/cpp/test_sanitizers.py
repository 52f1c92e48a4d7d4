"""The CPU kernels without Python: under the address and the undefined-behaviour sanitizer, and with the
oldest compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from build_kernels import ISA_FLAGS, PER_SET, TORCH_TARGET

COMPILER = shutil.which("g++") or shutil.which("clang++")
OLDEST = shutil.which("g++-11")


@pytest.mark.longest
@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_kernels_under_sanitizers(root, tmp_path):
    sources = root / "causal_linear_attention" / "csrc" / "cpu"
    flags = ["-std=c++20", "-O0", f"-I{sources}", "-pthread"]  # -O1 takes longer to compile than it saves
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    objects = []
    files = [x for x in sorted(sources.glob("*.cpp")) if not x.name.endswith("bindings.cpp")]
    for source in [*files, root / "tests" / "cpp" / "check_kernels.cpp"]:
        objects.append(str(tmp_path / source.with_suffix(".o").name))
        compile_ = [COMPILER, *flags, *ISA_FLAGS.get(source.name, []), "-c", str(source)]
        subprocess.run([*compile_, "-o", objects[-1]], check=True)
    program = str(tmp_path / "check_kernels")
    subprocess.run([COMPILER, *flags, *objects, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
    torch_headers = Path(torch.__file__).parent / "include"
    others = ("-isystem", str(torch_headers), "-isystem", str(torch_headers / "torch/csrc/api/include"))
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", TORCH_TARGET, *others]
    sources = [x for x in (root / "causal_linear_attention/csrc/cpu").glob("*.cpp") if PER_SET not in x.name]
    assert len(sources) >= 6
    subprocess.run([OLDEST, *flags, *map(str, sources)], check=True)
