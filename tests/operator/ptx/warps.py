"""Instructions that a whole warp executes together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .lane_maps import LDMATRIX, MMA
from .memory import Fault
from .operands import address, read, write
from .parser import Instruction
from .values import Lanes, Step, widened

if TYPE_CHECKING:
    from .machine import Machine


def _numbers(registers: list[NDArray], kind: str) -> NDArray[np.float64]:
    """(warps, 32, numbers): what pairs of 16-bit numbers in registers are, the lower half first."""
    both = np.stack(registers, -1).reshape(-1, 32, len(registers))
    halves = np.ascontiguousarray(both).view(np.uint16)
    return widened(halves, kind)


def _matrix(numbers: NDArray, places: NDArray, columns: int, rows: int) -> NDArray:
    result = np.zeros((len(numbers), rows, columns))
    result[:, places[..., 0], places[..., 1]] = numbers
    return result


def product(machine: Machine, i: Instruction) -> Step:
    """mma.m16n8k16 and m16n8k8: d = a b + c, rounded once. Tensor cores round otherwise."""
    depth, kind = int(i.parts[3].rpartition("k")[2]), i.parts[-2]
    maps = MMA["k8" if depth == 8 else kind]
    d, a, b, c = i.operands
    left, right = [read(machine, x, "u32") for x in a], [read(machine, x, "u32") for x in b]
    sums, to = [read(machine, x, "f32") for x in c], [write(machine, x, "f32") for x in d]

    def run(lanes: Lanes) -> None:
        a = _matrix(_numbers([x(lanes) for x in left], kind), maps["A"], depth, 16)
        b = _matrix(_numbers([x(lanes) for x in right], kind), maps["B"], 8, depth)
        products = (a @ b)[:, maps["C"][..., 0], maps["C"][..., 1]].reshape(-1, len(to))
        results = [(products[:, x] + sums[x](lanes)).astype(np.float32) for x in range(len(to))]
        for x, result in enumerate(results):
            to[x](lanes, result)

    return run


def load_matrices(machine: Machine, i: Instruction) -> Step:
    """ldmatrix.x4: lane l gives the address of row l % 8 of matrix l / 8."""
    if "x4" not in i.parts:
        raise NotImplementedError(i.text)
    places = LDMATRIX["ldmatrix.trans" if "trans" in i.parts else "ldmatrix"]
    to, at = [write(machine, x, "u32") for x in i.operands[0]], address(machine, i.operands[1])

    def run(lanes: Lanes) -> None:
        numbers = machine.numbers(lanes)
        first = machine.shared.places(at(lanes), machine.block[numbers], 16, i.text)
        machine.races.read(numbers, first, 16, i.text)
        rows = machine.shared.rows(first, 16).view(np.uint16).reshape(-1, 32, 8)
        taken = np.ascontiguousarray(rows[:, places[..., 0], places[..., 1]])  # (warps, 32, 8)
        registers = taken.view(np.uint32).reshape(-1, 4)
        for x, target in enumerate(to):
            target(lanes, registers[:, x])

    return run


def shuffle(machine: Machine, i: Instruction) -> Step:
    """Among all lanes, from any lane (`idx`) or the one with some bits of its number changed (`bfly`)."""
    to = i.operands[0][0] if isinstance(i.operands[0], tuple) else i.operands[0]
    target = write(machine, to, "u32")
    x, by, clamp, mask = (read(machine, operand, "u32") for operand in i.operands[1:])
    butterfly = "bfly" in i.parts

    def run(lanes: Lanes) -> None:
        if (clamp(lanes) != 31).any() or (mask(lanes) != 0xFFFFFFFF).any():
            raise Fault(f"not among all lanes: {i.text}")
        values, steps = x(lanes).reshape(-1, 32), by(lanes).reshape(-1, 32).astype(np.int64)
        source = np.arange(32) ^ steps if butterfly else steps % 32
        target(lanes, np.take_along_axis(values, source, 1).ravel())

    return run


def vote(machine: Machine, i: Instruction) -> Step:
    """vote.any."""
    if "any" not in i.parts:
        raise NotImplementedError(i.text)
    to, x = write(machine, i.operands[0], "pred"), read(machine, i.operands[1], "pred")
    return lambda lanes: to(lanes, np.repeat(x(lanes).reshape(-1, 32).any(1), 32))
