"""Peak memory of a piece of work, on a CPU or a GPU, and a cap on it.

On a CPU it is the peak of the whole process as the kernel counts it (`VmHWM`), which is exact only if freed
memory returns to the system at once. glibc keeps blocks of up to 32 MiB for later; `exact_frees` turns that
off while memory is measured, `usual_frees` turns it on again for timing. A measurement starts by returning
what was kept before.
"""

import ctypes
import errno
import resource

import torch

from pipeline.provenance import process_memory

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
MIB = 2**20


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
            _reset_process_peak()
            self.baseline = process_memory("VmRSS")

    def bytes(self) -> int:
        """Bytes at the peak minus the baseline."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() - self.baseline
        return process_memory("VmHWM") - self.baseline

    def whole_bytes(self) -> int:
        """Bytes at the peak, with all that was in use before: of torch's allocator, or of the process."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return process_memory("VmHWM")


def _reset_process_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pass  # the peak so far stays; it is that of the imports, below any training step's


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
