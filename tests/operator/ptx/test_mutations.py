"""Without any one of the kernels' barriers or waits the interpreter finds a race: the kernels need each, and
the detector misses none."""

import dataclasses

import pytest
import torch

from tests.helpers.definition import draw
from tests.operator.ptx.launches import with_instruction
from tests.operator.ptx.machine import Machine
from tests.operator.ptx.parser import Instruction

pytestmark = [pytest.mark.slow, pytest.mark.longest, pytest.mark.exhaustive]
SHORT, LONG = (1, 1, 70, 64, 64), (1, 1, 514, 64, 64)


def is_wait(instruction: Instruction) -> bool:
    """For the whole block, or for copies."""
    if instruction.name == "bar":
        return instruction.parts[1] != "warp"
    return instruction.parts[:3] == ("cp", "async", "wait_group")


def weakened(instruction: Instruction) -> Instruction:
    """No barrier, or a wait that leaves one more group of copies unfinished."""
    if instruction.name == "cp":
        (allowed,) = instruction.operands
        return dataclasses.replace(
            instruction, operands=(dataclasses.replace(allowed, bits=allowed.bits + 1),)
        )
    if instruction.parts[1] == "red":
        to, _, voted = instruction.operands
        return Instruction(("mov", "pred"), (to, voted))
    return Instruction(("membar", "gl"), ())


def waits(machine: Machine) -> list[int]:
    return [x for x, i in enumerate(machine.module.instructions) if is_wait(i) and machine.executed[x]]


@pytest.mark.parametrize(("name", "count"), [("forward", 4), ("backward", 9)])
def test_every_wait_is_needed(interpreter, name, count):
    given, long = (draw(shape, torch.bfloat16, True) for shape in (SHORT, LONG))
    _, machines = interpreter.run(given, True, order="lowest", passes=(name,))
    places = waits(machines[name])
    assert len(places) >= count and not machines[name].races.found
    for place in places:

        def edit(_, module, place=place):
            return with_instruction(module, place, weakened(module.instructions[place]))

        # The backward pass's last barrier comes before the next segment of a head.
        between = name == "backward" and place == places[-1]
        _, machines = interpreter.run(
            *(long if between else given, True),
            **{"busy": between, "seed": place, "passes": (name,), "edit": edit, "stop_at_a_race": True},
        )
        assert machines[name].races.found, f"{machines[name].module.instructions[place].text} at {place}"
