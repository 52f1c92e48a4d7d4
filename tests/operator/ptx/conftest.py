"""The interpreter of nvcc's PTX for the kernels."""

from functools import partial

import pytest

import build_machine
from tests.helpers.once import filled_once
from tests.operator.ptx.launches import Interpreter, compile_ptx


@pytest.fixture(scope="session")
def interpreter(root, library_of, tmp_path_factory) -> Interpreter:
    """An instance of the kernels is compiled when a test first asks for it."""
    try:
        nvcc = build_machine.nvcc()
    except build_machine.Skipped as why:
        pytest.skip(f"no PTX to interpret: {why}")

    def ptx(instance, arch):
        fill = partial(compile_ptx, root, nvcc, instance, arch)
        return filled_once(tmp_path_factory, f"ptx_{arch}_{instance.replace(',', '_')}", fill)

    return Interpreter(library_of(80), ptx)
