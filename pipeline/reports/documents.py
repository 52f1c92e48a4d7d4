"""Generate the tables of the documents from results/measured/.

A table lives between two comments in README.md, results/README.md or docs/; what is between them is
replaced, the prose around them is left alone. No figure in a table is typed by hand.
"""

import re
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import MEASURED, ROOT, read_json, shown_path
from pipeline.reports.tables import shown, where

WIDTH = 118  # of the prose around a paragraph
OPERATOR = "benchmarks/operator_cost.py"
DOCUMENTS = (
    ROOT / "results" / "README.md",
    ROOT / "README.md",
    ROOT / "docs" / "commands.md",
    ROOT / "docs" / "operator.md",
)
QUICKSTART_COLUMNS = (
    "architecture",
    "parameters",
    "updates",
    "valid ppl/word",
    "test ppl/word",
    "valid ppl/token",
    "test ppl/token",
    "tokens/s",
    "peak memory",
)


def operator_table(path: Path, title: str) -> str:
    """The table with this title of operator_cost.md, and the machine."""
    pieces = path.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")
    table = pieces[pieces.index(title) + 1]
    return f"{table}\n\n{where(read_json(path)['environment'])}"


def quickstart(path: Path) -> str:
    """The table that quickstart.sh ended with when its result was kept."""
    record = read_json(path)
    return f"```text\n{quickstart_table(record['models'])}\n```\n\n{where(record)}"


def quickstart_table(results: dict[str, dict[str, Any]]) -> str:
    """The comparison that quickstart.sh ends with, as text in columns."""
    rows = [QUICKSTART_COLUMNS]
    for architecture, result in results.items():
        valid, test, training = result["valid"], result["test"], result["training"]
        memory = training["peak_memory_bytes"]
        rows.append(
            (
                architecture,
                f"{valid['parameters']:,}",
                f"{valid['updates']:,}",
                f"{valid['perplexity_per_word']:,.1f}",
                f"{test['perplexity_per_word']:,.1f}",
                f"{valid['perplexity_per_token']:,.1f}",
                f"{test['perplexity_per_token']:,.1f}",
                shown(training["tokens_per_second"], ",.0f"),
                shown(memory and memory / 2**20, ",.0f") + " MiB",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def faults(path: Path) -> str:
    """How many broken runs resumed."""
    record = read_json(path)
    return survivors(record, where(record))


def survivors(record: dict[str, Any], machine: str) -> str:
    """How many faults of each kind training, studies and data preparation survived, and on which machine."""
    kinds = (f"{kind}, {found['survived']} of {found['broken']}" for kind, found in record["faults"].items())
    return textwrap.fill(f"Survived: {'; '.join(kinds)}. ({machine})", WIDTH)


def made_of(record: str, script: str, table: Callable[[Path], str]) -> str:
    """The table of a record, or which script would measure it."""
    path = MEASURED / record
    return table(path) if path.is_file() else f"Not measured yet; `{script}` measures it."


SECTIONS: dict[str, Callable[[], str]] = {
    "quickstart": partial(made_of, "quickstart.json", "scripts/quickstart.sh", quickstart),
    "crossover": partial(
        made_of,
        "operator_cpu/operator_cost.json",
        OPERATOR,
        partial(operator_table, title="Linear against softmax, forward"),
    ),
    "operator_on_a_gpu": partial(
        made_of,
        "operator_h100/operator_cost.json",
        OPERATOR,
        partial(operator_table, title="forward + backward, milliseconds"),
    ),
    "faults": partial(made_of, "fault_check.json", "scripts/fault_check.sh", faults),
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


def texts() -> dict[Path, str]:
    """The documents, and how they should read after the measured results."""
    return {one: filled(one.read_text(encoding="utf-8"), one) for one in filter(Path.is_file, DOCUMENTS)}
