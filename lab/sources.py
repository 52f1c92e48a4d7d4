"""The sources that decide what a benchmark measures, and which of them have changed since a record was made.

Comments, docstrings and blank lines do not count, nor do the driver and the tables of the benchmarks.
"""

import ast
import re
import tokenize
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

from conventions.mechanisms import MECHANISMS
from lab.files import ROOT
from lab.methods import NAMED

OPERATOR = ("causal_linear_attention",)
MODELS = ("attention", "criterions", "models", "modules", "optim")
"""Of user_dir; another part counts where a benchmark imports it."""
PLANS = "conventions/plans.py"
BENCHMARKS = "benchmarks/"
IMPORTS = r"^from benchmarks(?: import |\.)(?!run\b|operator_report\b)(\w+)"
"""Of modules of benchmarks/, but for the driver and the report, which decide no figure."""
SUFFIXES = (".py", ".cpp", ".h", ".inl", ".cu", ".cuh")
OF_OTHER_DEVICES = {"cpu": re.compile(r"/csrc/cuda/|/triton_"), "cuda": re.compile(r"/csrc/cpu/")}
"""Parts of the operator that the other device runs."""
ATTENTION = "user_dir/attention/"
C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DIGITS = 12
"""Of a hash."""


def measured_sources(command: str, root: Path = ROOT) -> dict[str, str]:
    """A hash of each source that decides what a command measures, by its path in the clone `root`.

    A benchmark without models measures the operator alone; any other command trains models.
    """
    script = command.partition(" ")[0]
    scripts = closure({script}, IMPORTS, BENCHMARKS, root) if script.startswith(BENCHMARKS) else set()
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
    """The sources that have changed, without those that device and architectures do not run."""
    differ = [path for path in sorted({*before, *now}) if before.get(path) != now.get(path)]
    other = OF_OTHER_DEVICES.get(device)
    unused = unused_attentions(architectures)
    return [path for path in differ if path not in unused and not (other and other.search(path))]


def unused_attentions(architectures: Iterable[str]) -> set[str]:
    """The files of mechanisms that no architecture has; empty if one of them is not known."""
    methods = [NAMED.get(name.removeprefix("roberta_")) for name in architectures]
    if not methods or None in methods:
        return set()
    files = {name: f"{ATTENTION}{one.file or name}.py" for name, one in MECHANISMS.items()}
    used = {files[name] for name, one in MECHANISMS.items() if one.method is None or one.method in methods}
    imports = r"^from \.([\w.]+) import"
    return closure({*files.values()} - used, imports, ATTENTION) - closure(used, imports, ATTENTION)


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
    """A short hash of a source without comments, docstrings and blank lines, kept until the file changes."""
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
    costs = [one for one in environments(record) if one.get("command", "").startswith(BENCHMARKS)]
    differ: set[str] = set()
    for one in costs:
        code = one.get("code")
        if not isinstance(code, dict):
            return f"Stale: measured at commit {one['commit']}, before records named their sources."
        now = measured_sources(one["command"])
        differ |= {*changed(code, now, one["device"], settings.get("architectures", []))}
    if not differ:
        return ""
    folders = ", ".join(sorted({str(Path(path).parent) for path in differ}))
    commits = " and ".join(sorted({one["commit"] for one in costs}))
    return f"Stale: measured at commit {commits}; since then sources in {folders} have changed."


def environments(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Where each run of a file of results/measured was made."""
    parts = [record, *record.get("records", [])]
    return record.get("sessions") or [one["environment"] for one in parts if "environment" in one]
