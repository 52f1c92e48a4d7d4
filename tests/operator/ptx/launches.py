"""The kernels as nvcc's PTX: compiles instances, takes the host code's launches and interprets them."""

import ctypes
import dataclasses
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from tests.helpers import emulation

from .machine import Launch, Machine
from .memory import Fault
from .parser import Instruction, Module, parse

DEVICES = {"90a": (90, 132, 232448), "75": (75, 40, 65536)}  # as emulation.emulate takes them
_ANY_KERNEL = re.compile(r"kKernel = [^;]*?(\w+_kernel)(?:<(?:cla::cuda::)?(\w+)(?:, (\w+))?>)?")
_KERNEL = re.compile(r"(forward|backward)_kernel<(?:cla::cuda::)?(\w+), (\w+), (\d+), (\w+), (\w+)>")
_MOST_RANGES = 64
_EMULATE = 1  # as in emulated_blocks.cpp
_FAILED = ctypes.create_string_buffer(b"the interpreter stopped")
_LAUNCHER = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    *(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
)
Edit = Callable[[str, Module], Module]
T = TypeVar("T")


def compile_ptx(root: Path, nvcc: str, name: str, arch: str, folder: Path) -> None:
    """As PTX in `folder`, both kernels of an instance ("Bf16,true,4,true,false"), or a file."""
    include = root / "causal_linear_attention" / "csrc" / "cuda"
    command = [nvcc, "-std=c++20", "-O3", "-w", "-ptx", f"-arch=compute_{arch}", f"-I{include}"]
    source = include / f"{name}.cu"
    if "," in name:
        names = ("TYPE", "NORMALIZE", "COLUMN_BLOCKS", "ALIGNED", "DECAYED")
        command += [f"-DCLA_{key}={x}" for key, x in zip(names, name.split(","), strict=True)]
        source = root / "tests" / "cpp" / "ptx_kernels.cu"
    subprocess.run([*command, str(source), "-o", str(folder / "kernels.ptx")], check=True)


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
        decay: torch.Tensor | None = None,
        scale: float = 1.0,
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
            decay, scale: as for `emulation.emulate`.
        """
        machines: dict[str, Machine] = {}

        def choose(kernel: str) -> tuple[str, Module, str] | None:
            found = _KERNEL.search(kernel)
            if found is None or found[1] not in passes:
                return None
            name, *instance = found.groups()
            module = _parsed(self.ptx(",".join(instance), arch) / "kernels.ptx")
            module = edit(name, module) if edit else module
            return name, module, next(x for x in module.entries if f"{name}_kernel" in x)

        capability, multiprocessors, shared_bytes = DEVICES[arch]
        device = capability, 0 if busy else multiprocessors, shared_bytes
        with self._interpreted(choose, machines, order, seed, stop_at_a_race):
            found = emulation.emulate(
                self.library, *given, normalize, device, decay, bounds=bounds, scale=scale
            )
        return list(found), machines

    def run_file(
        self, name: str, call: Callable[[ctypes.CDLL], T], seed: int = 0
    ) -> tuple[T, dict[str, Machine]]:
        """What `call` returns when the kernels of csrc/cuda/`name`.cu are interpreted, and their machines."""
        module, machines = _parsed(self.ptx(name, "90a") / "kernels.ptx"), {}

        def choose(kernel: str) -> tuple[str, Module, str] | None:
            found = _ANY_KERNEL.search(kernel)
            if found is None:
                return None
            kind = found[1]
            marks = [f"{len(kind)}{kind}", {None: "", "float": "If"}.get(found[2], found[2])]
            marks.append({None: "", "true": "Lb1E", "false": "Lb0E"}[found[3]])
            entry = next((x for x in module.entries if all(mark in x for mark in marks)), None)
            return entry and (kind, module, entry)

        with self._interpreted(choose, machines, "random", seed):
            result = call(self.library)
        return result, machines

    @contextmanager
    def _interpreted(
        self,
        choose: Callable,
        machines: dict[str, Machine],
        order: str,
        seed: int,
        stop_at_a_race: bool = False,
    ) -> Iterator[None]:
        """Launches run on a machine of `machines` where `choose(kernel)` gives its name, module and entry."""
        errors: list[Exception] = []

        def launch(kernel, parameter, columns, rows, threads, shared_bytes) -> int | None:
            try:
                if (chosen := choose(kernel.decode())) is None:
                    return _EMULATE
                name, module, entry = chosen
                content = ctypes.string_at(parameter, module.parameters[module.entries[entry]])
                start = Launch(entry, content, columns, threads, shared_bytes, self._ranges(), rows)
                machines[name] = Machine(module, start, order, seed)
                machines[name].run(stop_at_a_race=stop_at_a_race)
            except Exception as error:
                errors.append(error)
                return ctypes.addressof(_FAILED)
            return None

        launcher = _LAUNCHER(launch)
        self.library.set_launcher(launcher)
        try:
            yield
        except RuntimeError:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self.library.set_launcher(None)

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
