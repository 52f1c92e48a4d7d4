"""Generate the tables of the documents from results/measured/.

A table lives between two comments in README.md, results/README.md or docs/; what is between them is
replaced, the prose around them is left alone. No figure in a table is typed by hand.
"""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import MEASURED, ROOT, read_json, shown_path, write_atomically
from pipeline.reports.quickstart import quickstart_table
from pipeline.reports.tables import where

WIDTH = 118  # of the prose around a paragraph
CROSSOVER = "Linear against softmax, forward"
"""The title of a table of operator_cost.md."""
DOCUMENTS = (
    ROOT / "results" / "README.md",
    ROOT / "README.md",
    ROOT / "docs" / "commands.md",
    ROOT / "docs" / "operator.md",
)


def not_measured(script: str) -> str:
    """What stands where figures would be."""
    return f"Not measured yet; `{script}` measures it."


def crossover() -> str:
    """The sequence length above which the operator beats softmax on a CPU."""
    path = MEASURED / "operator_cpu" / "operator_cost.json"
    if not path.is_file():
        return not_measured("benchmarks/operator_cost.py")
    pieces = path.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")
    table = pieces[pieces.index(CROSSOVER) + 1]
    return f"{table}\n\n{where(read_json(path)['environment'])}"


def quickstart() -> str:
    """The table that quickstart.sh ended with when its result was kept."""
    path = MEASURED / "quickstart.json"
    if not path.is_file():
        return not_measured("scripts/quickstart.sh")
    record = read_json(path)
    return f"```text\n{quickstart_table(record['models'])}\n```\n\n{where(record)}"


def faults() -> str:
    """How many broken runs resumed."""
    path = MEASURED / "fault_check.json"
    if not path.is_file():
        return not_measured("scripts/fault_check.sh")
    record = read_json(path)
    return survivors(record, where(record))


def survivors(record: dict[str, Any], machine: str) -> str:
    """How many faults of each kind training, studies and data preparation survived, and on which machine."""
    kinds = (f"{kind}, {found['survived']} of {found['broken']}" for kind, found in record["faults"].items())
    return textwrap.fill(f"Survived: {'; '.join(kinds)}. ({machine})", WIDTH)


SECTIONS: dict[str, Callable[[], str]] = {
    "quickstart": quickstart,
    "crossover": crossover,
    "faults": faults,
}
SECTION = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, document: Path) -> str:
    """`text` with every table generated again; UserError for an unknown table."""

    def section(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise UserError(f"{shown_path(document)} asks for table {name}; there are {known}")
        return f"{start}\n{SECTIONS[name]().strip()}\n\n{end}"

    return SECTION.sub(section, text)


def stale() -> list[Path]:
    """The documents that the measured results have left behind."""
    found = []
    for document in filter(Path.is_file, DOCUMENTS):
        text = document.read_text(encoding="utf-8")
        if filled(text, document) != text:
            found.append(document)
    return found


def write_all() -> None:
    """Bring the documents up to date."""
    for document in filter(Path.is_file, DOCUMENTS):
        text = document.read_text(encoding="utf-8")
        new = filled(text, document)
        if new != text:
            write_atomically(document, new.encode())
            print(f"written: {shown_path(document)}")
