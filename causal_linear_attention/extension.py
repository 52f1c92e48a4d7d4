"""The compiled kernels: where they are, whether they loaded, and if not, why.

Two shared objects next to this file, `_cpu.so` and `_cuda.so`, hold the kernels of the operators that
`operators.py` declares. Both are optional and loading never raises: `reason(name)` says why one is missing,
and PyTorch runs instead.
"""

import ctypes
import json
import threading
from functools import cache
from pathlib import Path

import torch

from .compiling import assume_constant_result
from .sources import fingerprint

FOLDER = Path(__file__).parent
FILES = {"cpp": FOLDER / "_cpu.so", "cuda": FOLDER / "_cuda.so"}
TITLES = {"cpp": "C++", "cuda": "CUDA"}
BUILD_FILE = FOLDER / "_build.json"

_reasons: dict[str, str] = {}
_libraries: dict[str, ctypes.CDLL] = {}
_reasons_on_gpus: dict[int, str] = {}
_asking = threading.Lock()


def load(name: str) -> None:
    """Load the kernels "cpp" or "cuda"; keep any error for `reason`."""
    _reasons.pop(name, None)
    path = FILES[name]
    if not path.is_file():
        why = build_info().get("skipped", {}).get(name)
        _reasons[name] = f"the {TITLES[name]} kernels were not built" + (f" ({why})" if why else "")
        return
    if name == "cuda" and torch.version.cuda is None:
        _reasons[name] = f"torch {torch.__version__} has no CUDA support"
        return
    if not from_these_sources():
        _reasons[name] = (
            f"the {TITLES[name]} kernels were built from other sources than {FOLDER / 'csrc'} now holds; "
            "reinstall the package to build them again"
        )
        return
    try:
        library = ctypes.CDLL(str(path))  # first: its error names the missing part, unlike torch's
        torch.ops.load_library(str(path))
        _libraries[name] = library
        if name == "cpp":
            choose_instruction_set("")
    except ValueError as error:
        del _libraries[name]
        _reasons[name] = f"CAUSAL_LINEAR_ATTENTION_ISA cannot be used: {error}"
    except (OSError, RuntimeError) as error:
        built, cause = build_info().get("torch", "another version"), str(error).split("\n")[0]
        _reasons[name] = (
            f"the {TITLES[name]} kernels were built for torch {built} and do not load under "
            f"torch {torch.__version__} ({cause}); reinstall the package to build them again"
        )


def loaded(name: str) -> bool:
    """Whether the kernels "cpp" or "cuda" are loaded."""
    return name in _libraries


def reason(name: str) -> str:
    """Why the kernels "cpp" or "cuda" are not loaded, in one sentence without a full stop; "" if they are."""
    return _reasons.get(name, "")


@assume_constant_result
def reason_on_gpu(device: torch.device) -> str:
    """As `reason("cuda")`, for one GPU: also why no image of the kernels fits it. Once per GPU."""
    if (why := _reasons_on_gpus.get(device.index)) is not None:
        return why
    if why := reason("cuda"):
        return why
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    index = torch.cuda.current_device() if device.index is None else device.index
    with _asking:
        if index in _reasons_on_gpus:
            return _reasons_on_gpus[index]
        why = _ask_gpu(index)
        if not (
            why and torch.cuda.is_current_stream_capturing()
        ):  # where a kernel may be refused that runs later
            _reasons_on_gpus[index] = why
        return why


def _ask_gpu(index: int) -> str:
    ask = _libraries["cuda"].cla_cuda_unavailable
    ask.restype = ctypes.c_char_p
    with torch.cuda.device(index):
        why = ask().decode()
    if not why:
        return ""
    major, minor = torch.cuda.get_device_capability(index)
    built = ", ".join(build_info().get("cuda_archs", ["unknown architectures"]))
    return (
        f"the CUDA kernels, built for {built}, cannot run on {torch.cuda.get_device_name(index)} "
        f"of compute capability {major}.{minor} ({why})"
    )


@cache
def build_info() -> dict:
    """The build's record: versions, architectures, skipped parts with reasons; {} without a build."""
    try:
        return json.loads(BUILD_FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


@cache
def from_these_sources() -> bool:
    """Whether the kernels were built from the sources beside them, as far as both are known."""
    built, here = build_info().get("sources"), fingerprint(FOLDER / "csrc")
    return not built or not here or built == here


def instruction_set() -> str:
    """The instruction set the CPU kernels use: "baseline", "avx2" or "avx512"; "" without kernels.

    The best one the processor supports, or the one named by the variable CAUSAL_LINEAR_ATTENTION_ISA.
    """
    return _text("cla_cpu_isa")


def available_instruction_sets() -> list[str]:
    """The instruction sets this processor supports, the best last; [] without kernels."""
    return _text("cla_cpu_available_isa").split()


def choose_instruction_set(name: str) -> None:
    """Use the instruction set `name` from now on, "" for the default; ValueError if it is not available."""
    function = _libraries["cpp"].cla_cpu_choose_isa
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    message = function(name.encode()).decode()
    if message:
        raise ValueError(message)


def _text(function: str) -> str:
    if not loaded("cpp"):
        return ""
    call = getattr(_libraries["cpp"], function)
    call.restype = ctypes.c_char_p
    return call().decode()
