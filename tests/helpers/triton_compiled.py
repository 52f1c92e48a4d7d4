"""Compile the launches of the Triton backend for absent GPUs: `capability:dtype:D:M:normalize ...`, with
`:packed` behind it for packed sequences, or `:decayed` for decays.

Prints one JSON object per kernel: its registers, bytes of stack (spills) and of shared memory. With
"variants" alone, the kernels of which another batch or length needs another compilation. Runs in a separate
process, without TRITON_INTERPRET.
"""

import json
import re
import subprocess
import sys
import tempfile
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.knobs import nvidia

from causal_linear_attention import triton_backend

TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
TYPES |= {torch.int32: "i32", torch.int64: "i64", torch.bool: "i1"}
OPTIONS = ("num_warps", "num_stages")


def launches(
    dtype: torch.dtype,
    dim: int,
    width: int,
    normalize: bool,
    packed: bool,
    decayed: bool,
    batch: int = 1,
    rows: int = 4096,
) -> list[tuple[str, Any, tuple, dict]]:
    """Title, kernel, arguments and constants of the launches of forward, backward and a step, once each."""
    found: dict[str, tuple] = {}

    def record(like, kernel, grid, *arguments, **constants):
        title = " ".join(filter(None, [kernel.fn.__name__, constants.get("KIND")]))
        found.setdefault(title, (kernel, arguments, constants))

    wide = torch.promote_types(dtype, torch.float32)
    decay = torch.ones(batch, 2, rows, dtype=wide) if decayed else None
    for processors in (1, 8):  # one segment a head, and several
        q, v = (torch.zeros(batch, 2, rows, x, dtype=dtype) for x in (dim, width))
        cu_seqlens = torch.tensor([0, 7, rows], dtype=torch.int32) if packed else None
        state = torch.zeros(batch + packed, 2, dim, width + normalize, dtype=wide)
        with (
            mock.patch.object(triton_backend, "_launch", record),
            mock.patch.object(triton_backend, "_multiprocessors", lambda device, n=processors: n),
        ):
            out, _, inverse = triton_backend.forward(q, q, v, state, normalize, 1e-6, cu_seqlens, True, decay)
            arguments = (q, q, v, state, inverse, normalize, 1e-6, out, cu_seqlens, decay)
            triton_backend.backward(v, state, *arguments)
            token = (x.new_zeros(batch, 2, x.shape[-1]) for x in (q, q, v))
            factors = None if decay is None else torch.ones(batch, 2, dtype=wide)
            triton_backend.step(*token, state[:batch], normalize, 1e-6, factors)
    return [(title, *launch) for title, launch in found.items()]


def type_of(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return f"*{TYPES[argument.dtype]}"
    if isinstance(argument, tuple):
        return tuple(map(type_of, argument))
    if isinstance(argument, float):
        return "fp32"
    return "constexpr" if argument is None or argument == 1 else "i32"  # as the launcher has it


def flat(place: tuple[int, ...], argument: Any) -> dict[tuple[int, ...], Any]:
    """Arguments by their place, parts of tuples as well."""
    if not isinstance(argument, tuple):
        return {place: argument}
    return {key: x for i, part in enumerate(argument) for key, x in flat((*place, i), part).items()}


def specialisation(kernel: Any, arguments: tuple, constants: dict) -> tuple[dict, dict, dict]:
    """Signature, constants and divisibility with which the launcher would compile: its key of a variant."""
    signature, values, attributes = {}, {}, {}
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | constants
    for i, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in constants:
            signature[name], values[(i,)] = "constexpr", given[name]
            continue
        if parameter.do_not_specialize:
            signature[name] = "i32"
            continue
        signature[name] = type_of(given[name])
        for place, x in flat((i,), given[name]).items():
            if type_of(x) == "constexpr":
                values[place] = x
            elif isinstance(x, torch.Tensor) or (isinstance(x, int) and x % 16 == 0):
                attributes[place] = [["tt.divisibility", 16]]
    return signature, values, attributes


def compiled(kernel: Any, arguments: tuple, constants: dict, capability: int) -> dict[str, int]:
    options = {name: constants[name] for name in OPTIONS if name in constants}
    source = ASTSource(kernel, *specialisation(kernel, arguments, constants))
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [nvidia.cuobjdump.path, "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", report).groups()
    return {"registers": int(registers), "stack": int(stack), "shared": binary.metadata.shared}


def variants() -> list[str]:
    """Titles of the kernels that would be compiled again for another batch or length."""
    kind, found = (torch.bfloat16, 16, 32, True, False, True), {}
    for batch, rows in ((1, 4096), (3, 4096), (2, 5000), (2, 1001)):
        for title, *launch in launches(*kind, batch, rows):
            found.setdefault(title, []).append(specialisation(*launch))
    return [title for title, seen in found.items() if any(x != seen[0] for x in seen)]


def main() -> None:
    if sys.argv[1:] == ["variants"]:
        print(json.dumps(variants()))
        return
    for case in sys.argv[1:]:
        capability, dtype, dim, width, normalize, *more = case.split(":")
        kind = getattr(torch, dtype), int(dim), int(width), bool(int(normalize))
        kind += ("packed" in more, "decayed" in more)
        for title, *launch in launches(*kind):
            found = {"case": case, "kernel": title, **compiled(*launch, int(capability))}
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
