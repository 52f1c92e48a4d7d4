"""Instructions in which every thread computes for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .operands import read, write
from .parser import Instruction
from .values import TYPES, Lanes, Step, bfloat16_bits, float16_bits

if TYPE_CHECKING:
    from .machine import Machine


def _divide(x: NDArray, y: NDArray) -> NDArray:
    """Integers toward zero."""
    if x.dtype.kind == "f":
        return x / y
    safe = np.where(y == 0, np.ones_like(y), y)
    quotient = np.abs(x.astype(np.int64)) // np.abs(safe.astype(np.int64))
    return (quotient * np.sign(x.astype(np.int64)) * np.sign(safe.astype(np.int64))).astype(x.dtype)


def _remainder(x: NDArray, y: NDArray) -> NDArray:
    """The remainder of `_divide`, with the sign of x."""
    return x - _divide(x, y) * y


_BINARY = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": _remainder},
    **{"min": np.fmin, "max": np.fmax},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
}
_UNARY = {"not": np.invert, "neg": np.negative, "abs": np.abs, "rcp": np.reciprocal}
_UNARY |= {"sqrt": np.sqrt, "ex2": np.exp2}
# An ordered comparison with a NaN is false, an unordered one ("u") true; lo to hs compare unsigned integers.
_COMPARE = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
    **{"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal},
}


def unary(machine: Machine, i: Instruction) -> Step:
    function, to = _UNARY[i.name], write(machine, i.operands[0], i.type)
    x = read(machine, i.operands[1], i.type)
    return lambda lanes: to(lanes, function(x(lanes)))


def binary(machine: Machine, i: Instruction) -> Step:
    if "wide" in i.parts:
        return _wide(machine, i)
    function, to = _BINARY[i.name], write(machine, i.operands[0], i.type)
    x, y = (read(machine, operand, i.type) for operand in i.operands[1:])
    return lambda lanes: to(lanes, function(x(lanes), y(lanes)))


def _wide(machine: Machine, i: Instruction) -> Step:
    """A product of twice the size."""
    kind = f"{i.type[0]}{2 * int(i.type[1:])}"
    to, (x, y) = write(machine, i.operands[0], kind), (read(machine, o, i.type) for o in i.operands[1:])
    return lambda lanes: to(lanes, x(lanes).astype(TYPES[kind]) * y(lanes).astype(TYPES[kind]))


def multiply_add(machine: Machine, i: Instruction) -> Step:
    to = write(machine, i.operands[0], i.type)
    x, y, z = (read(machine, operand, i.type) for operand in i.operands[1:])
    if i.name == "mad":
        return lambda lanes: to(lanes, x(lanes) * y(lanes) + z(lanes))

    def fused(lanes: Lanes) -> None:
        exact = x(lanes).astype(np.float64) * y(lanes) + z(lanes)
        nearest = exact.astype(np.float32)
        if "rm" in i.parts:  # towards minus infinity
            nearest = np.where(nearest > exact, np.nextafter(nearest, np.float32(-np.inf)), nearest)
        to(lanes, nearest)

    return fused


def move(machine: Machine, i: Instruction) -> Step:
    """Also from two halves, and to them."""
    to, source = i.operands
    if isinstance(source, tuple):
        low, high = (read(machine, x, "u16") for x in source)
        whole = write(machine, to, "u32")
        return lambda lanes: whole(lanes, low(lanes) | high(lanes).astype(np.uint32) << np.uint32(16))
    if isinstance(to, tuple):
        first, second = (write(machine, x, "u16") for x in to)
        both = read(machine, source, "u32")

        def halves(lanes: Lanes) -> None:
            x = both(lanes)
            first(lanes, (x & np.uint32(0xFFFF)).astype(np.uint16))
            second(lanes, (x >> np.uint32(16)).astype(np.uint16))

        return halves
    target, x = write(machine, to, i.type), read(machine, source, i.type)
    return lambda lanes: target(lanes, x(lanes))


def shift(machine: Machine, i: Instruction) -> Step:
    to, x = write(machine, i.operands[0], i.type), read(machine, i.operands[1], i.type)
    by = read(machine, i.operands[2], "u32")
    function = np.left_shift if i.name == "shl" else np.right_shift
    bits = np.dtype(TYPES[i.type]).itemsize * 8
    kept = i.name == "shr" and i.type[0] == "s"  # the sign, however far

    def run(lanes: Lanes) -> None:
        values, steps = x(lanes), by(lanes)
        shifted = function(values, np.minimum(steps, bits - 1).astype(values.dtype))
        to(lanes, shifted if kept else np.where(steps >= bits, values.dtype.type(0), shifted))

    return run


def compare(machine: Machine, i: Instruction) -> Step:
    to, kind = write(machine, i.operands[0], "pred"), i.parts[1]
    x, y = (read(machine, operand, i.type) for operand in i.operands[1:])
    floating = i.type[0] == "f"
    function = _COMPARE[kind.removesuffix("u") if floating else kind]

    def run(lanes: Lanes) -> None:
        left, right = x(lanes), y(lanes)
        result = function(left, right)
        if floating:
            unordered = np.isnan(left) | np.isnan(right)
            result = result | unordered if kind.endswith("u") else result & ~unordered
        to(lanes, result)

    return run


def select(machine: Machine, i: Instruction) -> Step:
    to, (x, y) = write(machine, i.operands[0], i.type), (read(machine, o, i.type) for o in i.operands[1:3])
    which = read(machine, i.operands[3], "pred")
    return lambda lanes: to(lanes, np.where(which(lanes), x(lanes), y(lanes)))


def permute(machine: Machine, i: Instruction) -> Step:
    """prmt: each half byte of the third source chooses one of the eight bytes of the others."""
    to = write(machine, i.operands[0], "u32")
    x, y, choice = (read(machine, operand, "u32") for operand in i.operands[1:])

    def run(lanes: Lanes) -> None:
        both = x(lanes).astype(np.uint64) | y(lanes).astype(np.uint64) << np.uint64(32)
        chosen, result = choice(lanes), np.zeros_like(both)
        for n in range(4):
            which = (chosen >> np.uint32(4 * n)).astype(np.uint64) & np.uint64(15)
            if (which > 7).any():
                raise NotImplementedError(f"a byte's sign: {i.text}")
            byte = both >> (which * np.uint64(8)) & np.uint64(0xFF)
            result |= byte << np.uint64(8 * n)
        to(lanes, result.astype(np.uint32))

    return run


def convert(machine: Machine, i: Instruction) -> Step:
    to_kind, from_kind = i.parts[-2], i.parts[-1]
    if to_kind in ("f16x2", "bf16x2"):
        return _convert_two(machine, i)
    x = read(machine, i.operands[1], from_kind)
    if to_kind == "bf16":
        narrow = write(machine, i.operands[0], "u16")
        return lambda lanes: narrow(lanes, bfloat16_bits(x(lanes)).astype(np.uint16))
    to, kind = write(machine, i.operands[0], to_kind), TYPES[to_kind]
    if "sat" in i.parts:  # to [0, 1], 0 for a NaN
        return lambda lanes: to(lanes, np.nan_to_num(x(lanes), nan=0.0).clip(0, 1).astype(kind))
    if to_kind == from_kind:
        whole = np.rint if "rni" in i.parts else np.trunc
        return lambda lanes: to(lanes, whole(x(lanes)))
    if from_kind[0] == "f" and to_kind[0] != "f":
        limits = np.iinfo(kind)

        def to_integer(lanes: Lanes) -> None:
            whole = np.trunc(x(lanes).astype(np.float64))
            to(lanes, np.nan_to_num(whole, nan=0.0).clip(limits.min, limits.max).astype(kind))

        return to_integer
    return lambda lanes: to(lanes, x(lanes).astype(kind))


def _convert_two(machine: Machine, i: Instruction) -> Step:
    """The first operand becomes the upper half."""
    bits_of = bfloat16_bits if i.parts[-2] == "bf16x2" else float16_bits
    to, (high, low) = write(machine, i.operands[0], "u32"), (read(machine, o, "f32") for o in i.operands[1:])
    return lambda lanes: to(lanes, bits_of(high(lanes)) << np.uint32(16) | bits_of(low(lanes)))
