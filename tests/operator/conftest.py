"""The CUDA kernels without a GPU: as a CPU runs them, and on a runtime that fails on request."""

import ctypes
import subprocess
from functools import cache, partial

import pytest

from tests.helpers import emulation
from tests.helpers.once import filled_once


@pytest.fixture(scope="session")
def library_of(root, tmp_path_factory):
    """The emulated kernels by compute capability, 75 or 80; each is built when a test first asks for it."""
    if emulation.COMPILER is None:
        pytest.skip("no g++")

    @cache
    def get(capability):
        fill = partial(emulation.build, root, capability=capability)
        return emulation.load(filled_once(tmp_path_factory, f"emulation{capability}", fill))

    return get


@pytest.fixture(scope="module")
def on_fake_cuda(root, tmp_path_factory):
    """Compiles a source for the runtime of tests/cpp/fake_cuda and loads it."""
    if emulation.COMPILER is None:
        pytest.skip("no g++")
    folders = (root / "tests" / "cpp" / "fake_cuda", root / "causal_linear_attention" / "csrc" / "cuda")
    command = [emulation.COMPILER, "-std=c++20", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{folder}" for folder in folders]

    def compiled(source):
        target = str(tmp_path_factory.mktemp("fake_cuda") / "fake.so")
        subprocess.run([*command, "-x", "c++", str(source), "-o", target], check=True)
        return ctypes.CDLL(target)

    return compiled
