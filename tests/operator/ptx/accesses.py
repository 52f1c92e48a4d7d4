"""Loads, stores, asynchronous copies and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .memory import Copies, Fault
from .operands import PARAMETER_BITS, address, read, write
from .parser import Instruction, Operand
from .values import TYPES, UNSIGNED, Lanes, Step, size_of

if TYPE_CHECKING:
    from .machine import Machine


def _space(i: Instruction) -> str:
    for space in ("param", "shared", "global"):
        if space in i.parts:
            return space
    raise NotImplementedError(f"generic address: {i.text}")


def _vector(operand: Operand) -> tuple:
    return operand if isinstance(operand, tuple) else (operand,)


def load(machine: Machine, i: Instruction) -> Step:
    space, kind, size = _space(i), TYPES[i.type], size_of(i.type)
    at = address(machine, i.operands[1])
    targets = [write(machine, x, i.type) for x in _vector(i.operands[0])]
    if space == "param":

        def from_parameters(lanes: Lanes) -> None:
            places = at(lanes)
            for n, to in enumerate(targets):
                to(lanes, _parameter_bytes(machine, lanes, places + n * size, size, i.text).view(kind)[:, 0])

        return from_parameters
    memory = machine.shared if space == "shared" else machine.memory

    def run(lanes: Lanes) -> None:
        numbers = machine.numbers(lanes)
        first = _places(machine, space, at(lanes), numbers, size * len(targets), i.text)
        if space == "shared":
            machine.races.read(numbers, first, size * len(targets), i.text)
        for n, to in enumerate(targets):
            to(lanes, memory.load(first + n * size, size).view(kind))

    return run


def store(machine: Machine, i: Instruction) -> Step:
    space, size = _space(i), size_of(i.type)
    at = address(machine, i.operands[0])
    sources = [read(machine, x, i.type) for x in _vector(i.operands[1])]
    if space == "param":

        def to_parameters(lanes: Lanes) -> None:
            places, numbers = at(lanes), machine.numbers(lanes)
            for n, source in enumerate(sources):
                name, offset = _parameter(machine, places + n * size)
                data = np.ascontiguousarray(source(lanes)).view(np.uint8).reshape(-1, size)
                machine.parameters[name][numbers, offset : offset + size] = data

        return to_parameters
    memory = machine.shared if space == "shared" else machine.memory

    def run(lanes: Lanes) -> None:
        numbers = machine.numbers(lanes)
        first = _places(machine, space, at(lanes), numbers, size * len(sources), i.text)
        if space == "shared":
            machine.races.write(numbers, first, size * len(sources), i.text)
        for n, source in enumerate(sources):
            memory.store(first + n * size, size, np.ascontiguousarray(source(lanes)).view(UNSIGNED[size]))

    return run


def _places(
    machine: Machine, space: str, addresses: NDArray, numbers: NDArray, size: int, text: str
) -> NDArray[np.int64]:
    if space == "shared":
        return machine.shared.places(addresses, machine.block[numbers], size, text)
    return machine.memory.places(addresses, size, text)


def _parameter(machine: Machine, addresses: NDArray) -> tuple[str, int]:
    """Name and offset, the same for all threads."""
    if (addresses != addresses[0]).any():
        raise NotImplementedError("threads read different parameters at once")
    number, offset = divmod(int(addresses[0]), 1 << PARAMETER_BITS)
    return machine.parameter_names[number], offset


def _parameter_bytes(machine: Machine, lanes: Lanes, addresses: NDArray, size: int, text: str) -> NDArray:
    numbers = machine.numbers(lanes)
    result = np.empty((len(numbers), size), np.uint8)
    for start in np.unique(addresses):
        which = addresses == start
        name, offset = _parameter(machine, addresses[which])
        data = machine.parameters[name][numbers[which], offset : offset + size]
        if data.shape[1] < size:
            raise Fault(f"out of bounds: {text}")
        result[which] = data
    return result


def copy_parameter(machine: Machine, i: Instruction) -> Step:
    """The effect of a call on arguments and results."""
    to, source = (machine.parameters[x.name] for x in i.operands)

    def run(lanes: Lanes) -> None:
        to[lanes] = source[lanes]

    return run


def atomic_add(machine: Machine, i: Instruction) -> Step:
    """One thread after the other, in any order."""
    to, at = write(machine, i.operands[0], "u32"), address(machine, i.operands[1])
    by = read(machine, i.operands[2], "u32")

    def run(lanes: Lanes) -> None:
        places, added = machine.memory.places(at(lanes), 4, i.text), by(lanes)
        before = np.zeros_like(added)
        for n in machine.random.permutation(len(added)):
            one = places[n : n + 1]
            before[n] = machine.memory.load(one, 4)[0]
            machine.memory.store(one, 4, before[n : n + 1] + added[n : n + 1])
        to(lanes, before)

    return run


def asynchronous(machine: Machine, i: Instruction) -> Step:
    """cp.async with a size of the source that is all or nothing, its groups and waits."""
    copies = machine.copies
    if "commit_group" in i.parts:

        def commit(lanes: Lanes) -> None:
            copies.groups[lanes] += 1

        return commit
    if "wait_group" in i.parts:
        allowed = i.operands[0].bits
        return lambda lanes: copies.wait(machine.numbers(lanes), allowed, i.text)
    size = i.operands[2].bits
    to, source = (address(machine, x) for x in i.operands[:2])
    wanted = read(machine, i.operands[3], "u32")

    def start(lanes: Lanes) -> None:
        numbers, count = machine.numbers(lanes), wanted(lanes)
        if not np.isin(count, (0, size)).all():
            raise Fault(f"a part of a copy: {i.text}")
        places = machine.shared.places(to(lanes), machine.block[numbers], size, i.text)
        sources = source(lanes) - machine.memory.first
        some = count > 0
        if some.any():
            machine.memory.places(source(lanes)[some], size, i.text)
        copies.start(Copies(numbers, places, sources, some, size, copies.groups[numbers]), i.text)

    return start


def nothing(machine: Machine, i: Instruction) -> Step:
    """Fences, since memory is the same for all threads here, and marks."""
    return lambda lanes: None
