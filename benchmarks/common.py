"""What every measurement needs: a record of where it ran, results files, Markdown tables."""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import torch

from scripts import ROOT
from scripts.command import write_atomically
from user_dir.errors import UserError

ALLOCATOR_VARIABLES = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "LD_PRELOAD",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)


class CommandLine(argparse.ArgumentParser):
    """A command line described by a module's docstring; a mistake ends in one sentence."""

    def __init__(self, description: str | None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """What argparse calls for any mistake."""
        raise UserError(f"{message}; see {self.prog} --help")


def environment(device: str) -> dict[str, Any]:
    """What is recorded with every measurement: code, day, machine, versions, threads, command."""
    return {
        "commit": commit(),
        "date": date.today().isoformat(),
        "command": portable_command(sys.argv),
        "device": device,
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "allocator": {k: os.environ[k] for k in ALLOCATOR_VARIABLES if k in os.environ},
        "versions": versions(),
    }


def commit() -> str:
    """The commit measured, with "+changes" when tracked files differ; "unknown" outside a clone."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def hardware(device: str) -> dict[str, Any]:
    """Processor, cores this process may use, memory in GiB, and the GPU's name if it is used."""
    record: dict[str, Any] = {"cpu": _cpu_name(), "cores": usable_cores()}
    total = memory_total()
    if total is not None:
        record["memory_gib"] = round(total / 2**30, 1)
    if device == "cuda":
        record["gpu"] = torch.cuda.get_device_name()
    return record


def where(record: dict[str, Any], threads: int | None = None) -> str:
    """The GPU of an `environment`, or its processor and how many threads were used."""
    threads = threads or record["threads"]
    machine = record["hardware"]
    return machine.get("gpu") or f"{machine['cpu']}, {threads} thread{'s' if threads > 1 else ''}"


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


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the figures."""
    found = {"python": platform.python_version()}
    for package in ("torch", "numpy", "fairseq-fixed"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def portable_command(argv: Sequence[str]) -> str:
    """`argv` as one can type it in a clone.

    Paths below the root become relative; of others, which other machines lack, the name stays.
    """
    words = []
    for word in argv:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        path = Path(value)
        if path.is_absolute():
            inside = path.is_relative_to(ROOT)
            value = str(path.relative_to(ROOT)) if inside else f"FOLDER/{path.name}"
        words.append(shlex.quote(f"{flag}{equals}{value}"))
    return " ".join(words)


def write_json(path: Path, record: Any) -> None:
    """`record` as readable JSON, in one piece, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """What `path` holds; UserError if it cannot be read or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read as JSON; move it away or restore it") from None


def shown_path(path: Path) -> str:
    """`path` as a person in the repository's root would type it."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def spread(values: Sequence[float], format_value: str = "{:.2f}") -> str:
    """Median and range of `values`: "1.20 (1.10 to 1.40)", or one number if they print alike."""
    low, middle, high = (
        format_value.format(x) for x in (min(values), statistics.median(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, first column to the left, others to the right; no final newline."""
    rules = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rules, *rows])
