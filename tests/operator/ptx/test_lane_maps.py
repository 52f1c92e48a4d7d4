"""The emulation of matrix instructions (tests/cpp/emulated_device.h) places numbers as CUTLASS says.

The emulation was written from the PTX ISA, lane_maps.json was made from CUTLASS's layouts.
"""

import numpy as np
import pytest

from tests.operator.ptx.lane_maps import LDMATRIX, MMA


def bits_of(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Small integers, which both types hold exactly."""
    if kind == "f16":
        return numbers.astype(np.float16).view(np.uint16)
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def in_lanes(matrix: np.ndarray, places: np.ndarray, kind: str) -> np.ndarray:
    """A matrix in the registers of 32 lanes."""
    return np.ascontiguousarray(bits_of(matrix[places[..., 0], places[..., 1]], kind)).view(np.uint32)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_products(library_of, kind):
    """A one at each place of A in turn picks a row of B, all of whose numbers differ."""
    maps = MMA[kind]
    b = np.arange(16)[:, None] * 8 + np.arange(8) + 1
    right = in_lanes(b, maps["B"], kind)
    for m in range(16):
        for k in range(16):
            a, d = np.zeros((16, 16)), np.zeros((32, 4), np.float32)
            a[m, k] = 1
            left = in_lanes(a, maps["A"], kind)
            error = library_of(80).probe_product(kind == "bf16", left.ctypes, right.ctypes, d.ctypes)
            assert error is None
            expected = a @ b
            assert (d == expected[maps["C"][..., 0], maps["C"][..., 1]]).all(), (m, k)


def test_the_older_product_is_half_of_the_newer():
    """m16n8k8 has the places of m16n8k16 with k < 8, in the same order: the kernels run two of it for one."""
    for name in "ABC":
        whole, half = MMA["f16"][name], MMA["k8"][name]
        assert (whole[:, : half.shape[1]] == half).all()
        assert (MMA["bf16"][name] == whole).all()
        if name != "C":
            further = whole[:, half.shape[1] :] - half
            assert (further == ([0, 8] if name == "A" else [8, 0])).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("transpose", [False, True])
def test_loads(library_of, transpose):
    rows = np.arange(256, dtype=np.uint16).reshape(32, 8)
    found = np.zeros((32, 4), np.uint32)
    assert library_of(80).probe_load(transpose, rows.ctypes, found.ctypes) is None
    places = LDMATRIX["ldmatrix.trans" if transpose else "ldmatrix"]
    expected = np.ascontiguousarray(rows[places[..., 0], places[..., 1]]).view(np.uint32)
    assert (found == expected).all()
