"""The compiled kernels: where they are, whether they loaded, and if not, why.

Two shared objects next to this file, `_cpu.so` and `_cuda.so`, hold the kernels of the operators that
`operators.py` declares. Both are optional and loading never raises: `reason(name)` says why one is missing,
and PyTorch runs instead.
"""

import ctypes
import json
from functools import cache
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
FILES = {"cpp": FOLDER / "_cpu.so", "cuda": FOLDER / "_cuda.so"}
TITLES = {"cpp": "C++", "cuda": "CUDA"}
BUILD_FILE = FOLDER / "_build.json"

_reasons: dict[str, str] = {}
_libraries: dict[str, ctypes.CDLL] = {}


def load(name: str) -> None:
    """Load the kernels "cpp" or "cuda"; keep any error for `reason`."""
    _reasons.pop(name, None)
    path = FILES[name]
    if not path.is_file():
        _reasons[name] = f"the {TITLES[name]} kernels were not built"
        return
    if name == "cuda" and torch.version.cuda is None:
        _reasons[name] = f"torch {torch.__version__} has no CUDA support"
        return
    try:
        library = ctypes.CDLL(str(path))  # first: its error says what is missing, unlike torch's
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
    return name in _libraries


def reason(name: str) -> str:
    """Why the kernels "cpp" or "cuda" are not loaded, in one sentence without a full stop; "" if they are."""
    return _reasons.get(name, "")


def is_broken(name: str) -> bool:
    """Whether the kernels were built but do not load: worth a warning, unlike kernels never built."""
    here = name != "cuda" or torch.version.cuda is not None
    return here and name in _reasons and FILES[name].is_file()


@cache
def build_info() -> dict:
    """What the build recorded: torch and compiler versions, architectures; {} if nothing was built."""
    try:
        return json.loads(BUILD_FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


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
