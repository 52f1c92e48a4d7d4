"""Where and how a measurement ran, and which sources that decide its figures have changed since.

Comments, docstrings and blank lines of sources do not count, nor do the driver and the tables of benchmarks.
"""

import ast
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import tokenize
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import cache
from hashlib import sha256
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

from conventions.mechanisms import MECHANISMS
from lab.errors import UserError
from lab.files import ROOT, fingerprint, shown_path
from lab.methods import NAMED

ALLOCATOR_VARIABLES = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "THP_MEM_ALLOC_ENABLE",
    "LD_PRELOAD",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)
OPERATOR = ("causal_linear_attention",)
MODELS = ("attention", "criterions", "models", "modules", "optim")
"""Parts of user_dir; another part counts where a benchmark imports it, of `TASKS` only what it imports."""
PLANS = "conventions/plans.py"
BENCHMARK_FOLDER = "benchmarks/"
IMPORTS = r"^from benchmarks(?: import |\.)(?!run\b|operator_report\b)(\w+)"
"""Imports from benchmarks/, except the driver and the report, which decide no figure."""
SUFFIXES = (".py", ".cpp", ".h", ".inl", ".cu", ".cuh")
OF_OTHER_DEVICES = {
    "cpu": re.compile(r"/csrc/cuda/|/triton_"),
    "cuda": re.compile(r"/csrc/cpu/"),
    "nvcc": re.compile(r"^causal_linear_attention/(?!csrc/(cuda/|\w+\.h$))"),
}
"""Parts of the operator that a device does not run, or that nvcc does not compile."""
ATTENTION = "user_dir/attention/"
TASKS = "user_dir/tasks/"
OF_OPTIONS = {"user_dir/models/attention_statistics.py", "user_dir/models/compiled.py"}
"""Parts of models that run only with an option that no benchmark gives."""
C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DIGITS = 12
"""Length of a hash."""


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
    """UserError if the figures in `path` come from `earlier` environments that differ from this one.

    Everything that decides a time must be the same: GPU, processor, cores, threads and the version of torch.
    """
    now = _machine(environment(device))
    for record in earlier:
        if (then := _machine(record)) != now:
            raise UserError(
                f"{shown_path(path)} was measured on {then}, and this is {now}; "
                "give another --out, or measure again with --restart"
            )


def _machine(record: Any) -> str:
    """Everything that a time depends on, in words."""
    record = record if isinstance(record, dict) else {}
    hardware, versions = record.get("hardware") or {}, record.get("versions") or {}
    parts = [hardware["gpu"]] if "gpu" in hardware else []
    parts.append(hardware.get("cpu", "an unknown processor"))
    for what, number in (("core", hardware.get("cores", "?")), ("thread", record.get("threads", "?"))):
        parts.append(f"{number} {what}" if number == 1 else f"{number} {what}s")
    return ", ".join([*parts, f"torch {versions.get('torch', '?')}"])


def commit(root: Path = ROOT) -> str:
    """Commit of the clone `root`, with "+changes" when tracked files differ; "unknown" outside a clone."""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def measured_code(command: str) -> str | dict[str, str]:
    """The sources that decide the figures of a command: a hash per source for benchmarks, else one of all."""
    sources = measured_sources(command)
    return sources if command.startswith(BENCHMARK_FOLDER) else fingerprint(sources)


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
    """Cores this process may run on; a container may have fewer than the machine."""
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
    """`argv` as typed in a clone; its first word may be a verb, such as `scripts/lab.sh export`.

    Paths below the root become relative, and so does a script there, however it was named; of other paths,
    which other machines lack, the name stays.
    """
    verb = argv[0].split() if argv[0].startswith("scripts/lab.sh ") else [_script(argv[0])]
    words = []
    for word in [*verb, *argv[1:]]:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        path = Path(value)
        if path.is_absolute():
            inside = path.is_relative_to(ROOT)
            value = str(path.relative_to(ROOT)) if inside else f"FOLDER/{path.name}"
        words.append(shlex.quote(f"{flag}{equals}{value}"))
    return " ".join(words)


def _script(name: str) -> str:
    """The name of a script as typed in the clone's root; other names stay."""
    shown = shown_path(Path(name))
    return shown if Path(name).is_file() and not Path(shown).is_absolute() else name


def measured_sources(command: str, root: Path = ROOT) -> dict[str, str]:
    """A hash of each source that decides the figures of a command, by its path in the clone `root`.

    A benchmark without models measures the operator alone; any other command trains models.
    """
    script = command.partition(" ")[0]
    is_benchmark = script.startswith(BENCHMARK_FOLDER)
    scripts = closure({script}, IMPORTS, BENCHMARK_FOLDER, root) if is_benchmark else set()
    used = set().union(*(re.findall(r"\buser_dir(?:\.(\w+))?", read(root / one)) for one in scripts))
    used |= set() if scripts else {"tasks"}
    found = [root / part for part in OPERATOR]
    if used:
        found += [root / "user_dir" / part for part in {*MODELS, *used} - {""}] + [root / PLANS]
    files = [path for one in found for path in ([one] if one.is_file() else one.rglob("*"))]
    files += [root / one for one in scripts]
    sources = sorted({path for path in files if path.suffix in SUFFIXES and path.is_file()})
    return {str(path.relative_to(root)): digest(path, path.stat().st_mtime_ns) for path in sources}


def changed(
    before: Mapping[str, str], now: Mapping[str, str], device: str, architectures: Iterable[str] = ()
) -> list[str]:
    """The sources that have changed, without those that benchmark, device and architectures do not run."""
    differ = [path for path in sorted({*before, *now}) if before.get(path) != now.get(path)]
    other = OF_OTHER_DEVICES.get(device)
    unused = unused_attentions(architectures) | OF_OPTIONS
    return [path for path in differ if path not in unused and not (other and other.search(path))]


def measured_methods(command: str, architectures: Collection[str], root: Path = ROOT) -> Collection[str]:
    """Names of the methods that a benchmark measures.

    They are its architectures, or the names that its scripts contain where it has others of its own.
    """
    if architectures and {name.removeprefix("roberta_") for name in architectures} <= NAMED.keys():
        return architectures
    scripts = closure({command.partition(" ")[0]}, IMPORTS, BENCHMARK_FOLDER, root)
    return NAMED.keys() & {word for one in scripts for word in re.findall(r"\w+", read(root / one))}


def unused_attentions(architectures: Iterable[str]) -> set[str]:
    """The files of mechanisms that no architecture has; empty if one of them is not known."""
    methods = [NAMED.get(name.removeprefix("roberta_")) for name in architectures]
    if not methods or None in methods:
        return set()
    files = {name: f"{ATTENTION}{one.file or name}.py" for name, one in MECHANISMS.items()}
    used = {files[name] for name, one in MECHANISMS.items() if one.method is None or one.method in methods}
    imports = r"^from \.([\w.]+) import"
    return closure({*files.values()} - used, imports, ATTENTION) - closure(used, imports, ATTENTION)


def unused_tasks(sources: Iterable[str], command: str, root: Path = ROOT) -> set[str]:
    """The `sources` that are parts of tasks which a benchmark does not import.

    They are none where it imports the package itself, which has all tasks.
    """
    scripts = closure({command.partition(" ")[0]}, IMPORTS, BENCHMARK_FOLDER, root)
    named = {
        name for one in scripts for name in re.findall(r"\buser_dir\.tasks\b(?:\.(\w+))?", read(root / one))
    }
    if "" in named:
        return set()
    used = closure({f"{TASKS}{name}.py" for name in named}, r"^from \.(\w+) import", TASKS, root)
    return {path for path in sources if path.startswith(TASKS)} - used


def closure(files: Collection[str], imports: str, folder: str, root: Path = ROOT) -> set[str]:
    """Files and what they import from a folder, directly or not."""
    found, todo = set(), [one for one in files if (root / one).is_file()]
    while todo:
        if (one := todo.pop()) not in found:
            found.add(one)
            names = re.findall(imports, read(root / one), re.MULTILINE)
            paths = (f"{folder}{name.replace('.', '/')}.py" for name in names)
            todo += [path for path in paths if (root / path).is_file()]
    return found


def read(path: Path) -> str:
    """The text of a source."""
    return path.read_text(encoding="utf-8")


@cache
def digest(path: Path, changed_at: int) -> str:
    """A short hash of a source without comments, docstrings and blank lines, cached while it is unchanged."""
    text = read(path)
    text = without_words(text) if path.suffix == ".py" else C_COMMENT.sub("", text)
    lines = filter(None, map(str.rstrip, text.splitlines()))
    return sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]


def without_words(text: str) -> str:
    """A Python source without comments and docstrings."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)


def stale(record: Any) -> str:
    """Which sources of a record of costs have changed since, in a sentence; empty for a current one."""
    settings = record.get("settings") or {}
    costs = [one for one in environments(record) if one.get("command", "").startswith(BENCHMARK_FOLDER)]
    differ: set[str] = set()
    for one in costs:
        code = one.get("code")
        if not isinstance(code, dict):
            return f"Stale: measured at commit {one['commit']}, before records named their sources."
        command = one["command"]
        methods = measured_methods(command, settings.get("architectures", []))
        sources = changed(code, measured_sources(command), one["device"], methods)
        differ |= {*sources} - unused_tasks(sources, command)
    if not differ:
        return ""
    folders = ", ".join(sorted({str(Path(path).parent) for path in differ}))
    commits = " and ".join(sorted({one["commit"] for one in costs}))
    return f"Stale: measured at commit {commits}; since then sources in {folders} have changed."


def environments(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Where each run of a file of results/measured was made."""
    parts = [record, *record.get("records", [])]
    return record.get("sessions") or [one["environment"] for one in parts if "environment" in one]
