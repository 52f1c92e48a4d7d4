"""From instructions to functions that execute them for some threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import accesses, arithmetic, warps
from .parser import Instruction
from .values import TYPES, Step

if TYPE_CHECKING:
    from .machine import Machine

_DECODERS = {
    **dict.fromkeys(("not", "neg", "abs", "rcp", "sqrt", "ex2"), arithmetic.unary),
    **dict.fromkeys(("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor"), arithmetic.binary),
    **dict.fromkeys(("mad", "fma"), arithmetic.multiply_add),
    **dict.fromkeys(("mov", "cvta"), arithmetic.move),
    **dict.fromkeys(("shl", "shr"), arithmetic.shift),
    "prmt": arithmetic.permute,
    **{"setp": arithmetic.compare, "selp": arithmetic.select, "cvt": arithmetic.convert},
    **{"ld": accesses.load, "st": accesses.store, "atom": accesses.atomic_add},
    **{"cp": accesses.asynchronous, "copy": accesses.copy_parameter},
    **dict.fromkeys(("membar", "fence", "pmevent"), accesses.nothing),
    **{"mma": warps.product, "ldmatrix": warps.load_matrices, "shfl": warps.shuffle, "vote": warps.vote},
}
# Modifiers that mean something to the decoders, or nothing to one thread after the other.
_MODIFIERS = {
    *("rn", "rzi", "lo", "wide", "to", "sync", "aligned", "any", "bfly", "idx", "pred", "async"),
    *("param", "shared", "global", "v2", "v4", "cg", "ca", "commit_group", "wait_group"),
    *("release", "acquire", "gpu", "gl", "m16n8k16", "m16n8k8", "m8n8", "x4", "trans", "row", "col"),
    *("f16x2", "bf16x2", "bf16", "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"),
    *("equ", "neu", "ltu", "leu", "gtu", "geu", "add", "uni"),
}
# Those that one kind of instruction may have beside them.
_OF = {"cvt": {"rni", "sat"}, "fma": {"rm"}, "ex2": {"approx", "ftz"}}


def step(machine: Machine, instruction: Instruction) -> Step:
    """The function for one instruction, without its guard."""
    unknown = set(instruction.parts[1:]) - _MODIFIERS - _OF.get(instruction.name, set()) - set(TYPES)
    high = "hi" in instruction.parts and instruction.name != "setp"
    if instruction.name not in _DECODERS or unknown or high:
        raise NotImplementedError(instruction.text)
    return _DECODERS[instruction.name](machine, instruction)
