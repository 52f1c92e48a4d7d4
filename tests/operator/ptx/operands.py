"""How instructions read and write their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .parser import Address, Immediate, Negated, Operand, Register, Special, Symbol
from .values import TYPES, Lanes, Read, constant, resized, size_of

if TYPE_CHECKING:
    from .machine import Machine

Write = Callable[[Lanes, NDArray], None]
PARAMETER_BITS = 32  # a parameter's address is its number, then an offset of so many bits


def read(machine: Machine, operand: Operand, kind: str) -> Read:
    """A function that gets the operand of some threads as this type."""
    if isinstance(operand, Negated):
        inner = read(machine, operand.register, kind)
        return lambda lanes: ~inner(lanes)
    if isinstance(operand, Register):
        if kind == "pred" or machine.register(operand).itemsize == size_of(kind):
            values = machine.typed(operand, kind)
            return lambda lanes: values[lanes]
        raw, size = machine.register(operand), size_of(kind)
        return lambda lanes: resized(raw[lanes], size).view(TYPES[kind])
    if isinstance(operand, Special):
        values = _special(machine, operand.name).astype(TYPES[kind])
        return lambda lanes: values[lanes]
    bits = operand.bits if isinstance(operand, Immediate) else _symbol(machine, operand)
    values = np.full(len(machine.everyone), constant(bits, kind))
    return lambda lanes: values[lanes]


def write(machine: Machine, operand: Operand, kind: str) -> Write:
    """A function that sets the operand of some threads to values of this type."""
    if not isinstance(operand, Register):
        if operand == Symbol("_"):
            return lambda lanes, values: None
        raise NotImplementedError(f"cannot write {operand}")
    target = machine.register(operand)
    if kind == "pred" or target.itemsize == size_of(kind):
        typed = machine.typed(operand, kind)

        def same(lanes: Lanes, values: NDArray) -> None:
            typed[lanes] = values

        return same

    def other(lanes: Lanes, values: NDArray) -> None:
        target[lanes] = resized(values, target.itemsize).view(target.dtype)

    return other


def address(machine: Machine, operand: Operand) -> Read:
    """A function that gets the address in brackets as int64."""
    if not isinstance(operand, Address):
        raise NotImplementedError(f"not an address: {operand}")
    if isinstance(operand.base, Symbol):
        fixed = np.full(len(machine.everyone), _symbol(machine, operand.base) + operand.offset)
        return lambda lanes: fixed[lanes]
    raw = machine.register(operand.base)
    signed = raw.view(np.int64 if raw.itemsize == 8 else np.int32)
    return lambda lanes: signed[lanes].astype(np.int64) + operand.offset


def _special(machine: Machine, name: str) -> NDArray:
    if name == "%tid.x":
        return machine.thread
    if name == "%ctaid.x":
        return machine.block % machine.columns
    if name == "%ctaid.y":
        return machine.block // machine.columns
    raise NotImplementedError(f"there is no {name}")


def _symbol(machine: Machine, symbol: Symbol) -> int:
    if symbol.name in machine.parameters:
        return machine.parameter_names.index(symbol.name) << PARAMETER_BITS
    return 0  # shared memory
