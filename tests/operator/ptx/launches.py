"""The kernels as nvcc's PTX: compiles instances, takes the host code's launches and interprets them."""

import ctypes
import dataclasses
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from tests.helpers import emulation

from .machine import Launch, Machine
from .memory import Fault
from .parser import Instruction, Module, parse

DEVICES = {"90a": (90, 132, 232448), "75": (75, 40, 65536)}  # as emulation.emulate takes them
_KERNEL = re.compile(r"(forward|backward)_kernel<(?:cla::cuda::)?(\w+), (\w+), (\d+), (\w+)>")
_MOST_RANGES = 64
_EMULATE = 1  # as in emulated_blocks.cpp
_FAILED = ctypes.create_string_buffer(b"the interpreter stopped")
_LAUNCHER = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    *(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
)
Edit = Callable[[str, Module], Module]


def compile_ptx(root: Path, nvcc: str, instance: str, arch: str, folder: Path) -> None:
    """The forward and the backward kernel of an instance ("Bf16,true,4,true") as PTX in `folder`."""
    source = root / "tests" / "cpp" / "ptx_kernels.cu"
    include = root / "causal_linear_attention" / "csrc" / "cuda"
    command = [nvcc, "-std=c++20", "-O3", "-w", "-ptx", f"-arch=compute_{arch}", f"-I{include}"]
    names = ("TYPE", "NORMALIZE", "COLUMN_BLOCKS", "ALIGNED")
    command += [f"-DCLA_{name}={x}" for name, x in zip(names, instance.split(","), strict=True)]
    command += [str(source), "-o", str(folder / "kernels.ptx")]
    subprocess.run(command, check=True)


@cache
def _parsed(path: Path) -> Module:
    return parse(path.read_text(encoding="ascii"))


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """Runs forward and backward passes.

    Attributes:
        library: the emulation's, whose host code makes the launches.
        ptx: the folder with the PTX of an instance for an architecture.
    """

    library: ctypes.CDLL
    ptx: Callable[[str, str], Path]

    def run(
        self,
        given: Sequence[torch.Tensor | None],
        normalize: bool,
        arch: str = "90a",
        *,
        busy: bool = False,
        order: str = "random",
        seed: int = 0,
        passes: tuple[str, ...] = ("forward", "backward"),
        edit: Edit | None = None,
        stop_at_a_race: bool = False,
        bounds: torch.Tensor | None = None,
    ) -> tuple[list[torch.Tensor], dict[str, Machine]]:
        """Output, final state and gradients as `emulation.emulate`, and each pass's machine.

        Args:
            arch: "90a" or "75", what nvcc compiled for.
            busy: the heads fill the GPU, so none is cut into segments.
            order, seed: of warps.
            passes: the emulation runs the others.
            edit: returns the module to run for a pass.
            stop_at_a_race: a machine that has found one leaves the rest undone.
            bounds: of packed sequences.
        """
        machines: dict[str, Machine] = {}
        errors: list[Exception] = []

        def launch(kernel, parameter, blocks, segments, threads, shared_bytes) -> int | None:
            try:
                found = _KERNEL.search(kernel.decode())
                if found is None or found[1] not in passes:
                    return _EMULATE
                name, *instance = found.groups()
                module = _parsed(self.ptx(",".join(instance), arch) / "kernels.ptx")
                module = edit(name, module) if edit else module
                entry = next(x for x in module.entries if f"{name}_kernel" in x)
                content = ctypes.string_at(parameter, module.parameters[module.entries[entry]])
                start = Launch(entry, content, blocks * segments, threads, shared_bytes, self._ranges())
                machines[name] = Machine(module, start, order, seed)
                machines[name].run(stop_at_a_race=stop_at_a_race)
            except Exception as error:
                errors.append(error)
                return ctypes.addressof(_FAILED)
            return None

        launcher = _LAUNCHER(launch)
        self.library.set_launcher(launcher)
        try:
            capability, multiprocessors, shared_bytes = DEVICES[arch]
            device = capability, 0 if busy else multiprocessors, shared_bytes
            found = emulation.emulate(self.library, *given, normalize, device, bounds=bounds)
        except RuntimeError:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self.library.set_launcher(None)
        return list(found), machines

    def _ranges(self) -> list[tuple[int, int]]:
        flat = (ctypes.c_int64 * (2 * _MOST_RANGES))()
        count = self.library.guarded_ranges(flat, _MOST_RANGES)
        if count > _MOST_RANGES:
            raise Fault(f"{count} arrays; expected at most {_MOST_RANGES}")
        return [(flat[2 * i], flat[2 * i + 1]) for i in range(count)]


def with_instruction(module: Module, place: int, instruction: Instruction) -> Module:
    """The module with another instruction at this place."""
    instructions = list(module.instructions)
    instructions[place] = instruction
    return dataclasses.replace(module, instructions=instructions)
