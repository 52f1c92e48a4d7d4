"""Where and how a measurement ran: commit, date, command, machine, versions, memory."""

import os
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from lab.errors import UserError
from lab.files import ROOT, fingerprint, shown_path
from lab.sources import BENCHMARKS, measured_sources

ALLOCATOR_VARIABLES = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "THP_MEM_ALLOC_ENABLE",
    "LD_PRELOAD",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)


def environment(device: str) -> dict[str, Any]:
    """Provenance of a measurement: code, day, machine, versions, threads, command."""
    import torch

    command = portable_command(sys.argv)
    return {
        "commit": commit(),
        "code": measured_code(command),
        "date": date.today().isoformat(),
        "command": command,
        "device": device,
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "allocator": {k: os.environ[k] for k in ALLOCATOR_VARIABLES if k in os.environ},
        "versions": versions(),
    }


def check_same_machine(path: Path, earlier: Sequence[Any], device: str) -> None:
    """UserError if one of the `earlier` environments, whose figures `path` holds, is not like this one.

    What must be the same is what decides a time: GPU, processor, cores, threads and the version of torch.
    """
    now = _machine(environment(device))
    for record in earlier:
        if (then := _machine(record)) != now:
            raise UserError(
                f"{shown_path(path)} was measured on {then}, and this is {now}; "
                "give another --out, or measure again with --restart"
            )


def _machine(record: Any) -> str:
    """What a time depends on, in words."""
    record = record if isinstance(record, dict) else {}
    hardware, versions = record.get("hardware") or {}, record.get("versions") or {}
    parts = [hardware["gpu"]] if "gpu" in hardware else []
    parts.append(hardware.get("cpu", "an unknown processor"))
    for what, number in (("core", hardware.get("cores", "?")), ("thread", record.get("threads", "?"))):
        parts.append(f"{number} {what}" if number == 1 else f"{number} {what}s")
    return ", ".join([*parts, f"torch {versions.get('torch', '?')}"])


def commit(root: Path = ROOT) -> str:
    """That of the clone `root`, with "+changes" when tracked files differ; "unknown" outside a clone."""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def measured_code(command: str) -> str | dict[str, str]:
    """The sources that decide what a command measures: of a benchmark a hash each, else one of all."""
    sources = measured_sources(command)
    return sources if command.startswith(BENCHMARKS) else fingerprint(sources)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def hardware(device: str) -> dict[str, Any]:
    """Processor, cores this process may use, memory in GiB, and the GPU's name if it is used."""
    cpu = _proc("cpuinfo", "model name") or platform.processor() or platform.machine()
    record: dict[str, Any] = {"cpu": cpu, "cores": usable_cores()}
    total = memory_total()
    if total is not None:
        record["memory_gib"] = round(total / 2**30, 1)
    if device == "cuda":
        import torch

        record["gpu"] = torch.cuda.get_device_name()
    return record


def usable_cores() -> int:
    """Cores this process may run on, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_total() -> int | None:
    """Bytes of main memory, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def memory_available() -> int:
    """Free bytes of main memory, or half of the total where the system does not say."""
    if free := _proc("meminfo", "MemAvailable"):
        return int(free.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def process_memory(field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (peak) of this process in bytes; the peak for both outside Linux."""
    if held := _proc("self/status", field):
        return int(held.split()[0]) * 1024
    unit = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _proc(file: str, field: str) -> str | None:
    """A field of a file in /proc; None if it is missing, as outside Linux."""
    try:
        lines = Path("/proc", file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == field), None)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the figures."""
    found = {"python": platform.python_version()}
    for package in ("torch", "numpy", "fairseq-fixed", "triton", "fla-core"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def portable_command(argv: Sequence[str]) -> str:
    """`argv` as one can type it in a clone; its first word may be a verb, such as `scripts/lab.sh export`.

    Paths below the root become relative; of others, which other machines lack, the name stays.
    """
    verb = argv[0].split() if argv[0].startswith("scripts/lab.sh ") else argv[:1]
    words = []
    for word in [*verb, *argv[1:]]:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        path = Path(value)
        if path.is_absolute():
            inside = path.is_relative_to(ROOT)
            value = str(path.relative_to(ROOT)) if inside else f"FOLDER/{path.name}"
        words.append(shlex.quote(f"{flag}{equals}{value}"))
    return " ".join(words)
