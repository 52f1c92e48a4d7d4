"""The interpreter of nvcc's PTX for the kernels."""

from functools import partial

import pytest

import build_machine
from tests.helpers import emulation
from tests.helpers.once import filled_once
from tests.operator.ptx.launches import Interpreter, compile_ptx


@pytest.fixture(scope="session")
def interpreter(root, tmp_path_factory) -> Interpreter:
    """An instance of the kernels is compiled when a test first asks for it."""
    if emulation.COMPILER is None:
        pytest.skip("no g++, which compiles the host code")
    try:
        nvcc = build_machine.nvcc()
    except build_machine.Skipped as why:
        pytest.skip(f"no PTX to interpret: {why}")

    def ptx(instance, arch):
        fill = partial(compile_ptx, root, nvcc, instance, arch)
        return filled_once(tmp_path_factory, f"ptx_{arch}_{instance.replace(',', '_')}", fill)

    fill = partial(emulation.build, root, capability=80)
    return Interpreter(emulation.load(filled_once(tmp_path_factory, "emulation80", fill)), ptx)
