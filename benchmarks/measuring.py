"""Time and peak memory of a piece of work, on a CPU or a GPU, a cap on memory, and the machine's own speed.

On a CPU the peak of memory is the whole process's, as the kernel counts it (`VmHWM`), which is exact only if
freed memory returns to the system at once. glibc keeps blocks of up to 32 MiB for later; `exact_frees` turns
that off while memory is measured, `usual_frees` turns it on again for timing. A measurement starts by
returning the memory kept before.
"""

import ctypes
import errno
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from lab.provenance import process_memory

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
MIB = 2**20
SAMPLE_MS = 10
ENOUGH_MS = 2000  # of a case of operator_cost.py


def _glibc(function: str, *arguments: int) -> bool:
    try:
        return bool(getattr(ctypes.CDLL(None), function)(*arguments))
    except (AttributeError, OSError):
        return False  # not glibc: the figure may include memory kept for later


def exact_frees() -> bool:
    """Return freed blocks of 1 MiB and more to the system; False if that is impossible."""
    return _glibc("mallopt", M_MMAP_THRESHOLD, MIB)


def usual_frees() -> None:
    """The thresholds glibc itself reaches in a program that frees large blocks."""
    _glibc("mallopt", M_MMAP_THRESHOLD, 32 * MIB)
    _glibc("mallopt", M_TRIM_THRESHOLD, 64 * MIB)


def keep_frees() -> None:
    """Keep all freed memory for later, as torch does on a GPU, so that steps of every size reuse it.

    Otherwise the system hands out blocks above 32 MiB again at every step, which from some length on takes
    longer than the rest of the step.
    """
    _glibc("mallopt", M_MMAP_MAX, 0)
    _glibc("mallopt", M_TRIM_THRESHOLD, -1)


class PeakMemory:
    """Peak memory between construction and `bytes()`, above what was in use before."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.baseline = torch.cuda.memory_allocated()
        else:
            _glibc("malloc_trim", 0)
            with suppress(OSError):  # else the imports' peak stays, which is below any training step's
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self.baseline = process_memory("VmRSS")

    def bytes(self) -> int:
        """Bytes at the peak minus the baseline."""
        return self.whole_bytes() - self.baseline

    def whole_bytes(self) -> int:
        """Bytes at the peak, with all that was in use before: of torch's allocator, or of the process."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return process_memory("VmHWM")


def limit_memory(device: str, limit: int) -> None:
    """Limit this process to `limit` bytes; `ran_out_of_memory` recognises the error beyond that."""
    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    else:
        # Data, not address space: mapped but unused libraries do not count.
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a failed allocation, on a CPU or a GPU."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    words = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in words or "out of memory" in words)


def clock(device: str) -> float:
    """Seconds, once the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(run: Callable[[], object], device: str) -> float:
    """Seconds `run` takes, including the work it starts on the GPU."""
    start = clock(device)
    run()
    return clock(device) - start


def measure(
    functions: dict[str, Callable[[], object]], device: str, rounds: int, enough_ms: float = 0.0
) -> dict[str, list[float]]:
    """Milliseconds per call, `rounds` times each in turns, or up to five times as often in `enough_ms`.

    A short call is repeated for about ten milliseconds. Each sample starts with a call that does not count,
    since another function has used the caches and the heap.
    """

    def sample(function: Callable[[], object], calls: int) -> float:
        start = clock(device)
        for _ in range(calls):
            function()
        return (clock(device) - start) * 1e3 / calls

    repeats = {}
    for name, function in functions.items():
        function()
        repeats[name] = max(1, int(SAMPLE_MS / max(sample(function, 1), 1e-3)))
    times = {name: [] for name in functions}
    begin = clock(device)
    for done in range(5 * rounds):
        if done >= rounds and (clock(device) - begin) * 1e3 > enough_ms:
            break
        for name, function in functions.items():
            function()
            times[name].append(sample(function, repeats[name]))
    return times


def forward_and_backward(function, q, k, v, grad):
    """A call that computes `function(q, k, v)` and the gradients of q, k and v, given the output's."""

    def run():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(function(*leaves), leaves, grad)

    return run


def peak(device: str, dtype: torch.dtype, quicker: int = 1) -> dict[str, float]:
    """The machine's own measure: GF/s of a matrix product and GB/s of a copy, best of several.

    The matrix has `quicker` times fewer rows and columns, the copy as many times fewer numbers.
    """
    # Without instructions for bfloat16 a CPU multiplies in it a hundred times slower than in float32.
    n = (8192 if device == "cuda" else 2048) // quicker
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    product = min(measure({"x": lambda: a @ b}, device, 5)["x"])
    x = torch.empty((2**28 if device == "cuda" else 2**25) // quicker, device=device)
    y = torch.empty_like(x)
    copy = min(measure({"x": lambda: y.copy_(x)}, device, 5)["x"])
    return {"GF/s": 2 * n**3 / product / 1e6, "GB/s": 2 * x.numel() * 4 / copy / 1e6}
