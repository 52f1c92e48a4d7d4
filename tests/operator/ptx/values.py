"""Numbers of PTX's types in numpy, and how they are rounded."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Lanes = slice | NDArray[np.int64]  # which threads: all of them, or those with these numbers
Read = Callable[[Lanes], NDArray]
Step = Callable[[Lanes], None]

TYPES = {
    **{"pred": np.bool_, "u8": np.uint8, "b8": np.uint8, "s8": np.int8},
    **{"u16": np.uint16, "b16": np.uint16, "s16": np.int16, "f16": np.float16},
    **{"u32": np.uint32, "b32": np.uint32, "s32": np.int32, "f32": np.float32},
    **{"u64": np.uint64, "b64": np.uint64, "s64": np.int64, "f64": np.float64},
}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def size_of(kind: str) -> int:
    return np.dtype(TYPES[kind]).itemsize


def constant(bits: int, kind: str) -> np.generic:
    """An immediate operand as this type."""
    if kind == "pred":
        return np.bool_(bits)
    size = size_of(kind)
    return np.array(bits & ((1 << 8 * size) - 1), UNSIGNED[size]).view(TYPES[kind])[()]


def resized(x: NDArray, size: int) -> NDArray:
    """Integers cut off, or extended by their sign, to so many bytes."""
    kind = np.dtype(f"{'i' if x.dtype.kind == 'i' else 'u'}{size}")
    return x.astype(kind)


def bfloat16_bits(x: NDArray) -> NDArray:
    """float32 rounded to nearest, ties to even, in uint32."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded)


def float16_bits(x: NDArray) -> NDArray:
    """float32 rounded to nearest, ties to even, in uint32."""
    return x.astype(np.float16).view(np.uint16).astype(np.uint32)


def widened(bits: NDArray, kind: str) -> NDArray:
    """16-bit numbers in uint16 as float64."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
