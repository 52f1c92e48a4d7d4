"""The document of all figures: each with what the paper says, what was found here, and where."""

import fnmatch
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import read_json, shown_path, write_atomically
from pipeline.outputs import begins, check_output
from pipeline.papers import statements
from pipeline.reports.tables import markdown_table, where

HEAD = """# What attention does

Figures of TransNormer (Qin et al. 2022) and of Linear Log-Normal attention (Nahshan et al. 2024), made by
`scripts/analyse.sh`. `scripts/analyse.sh report` writes this file from the JSON file of each figure, which
holds settings, seeds, series and tests. [docs/analysis.md](../../docs/analysis.md) says how each figure is
defined, and where the papers leave a choice.

The studies [analysis_runs](../analysis_runs/README.md) and
[analysis_encoders](../analysis_encoders/README.md) trained the language models and the two encoders behind
the figures; these are far below the bits of token frequencies. Only those of the loss scale, after 300
updates, are of encoders that had learned nothing else.
"""


def write_report(folder: Path) -> None:
    """Write README.md of all figures in `folder`, from their JSON files."""
    check_output(folder / "README.md", begins(HEAD.splitlines()[0]), makes_folder=True)
    text = document(folder)
    if not text:
        raise UserError(
            f"{shown_path(folder)} holds no figure; scripts/analyse.sh theory makes the first ones"
        )
    write_atomically(folder / "README.md", text.encode())
    print(f"written: {shown_path(folder / 'README.md')}")


def document(folder: Path) -> str:
    """The whole text in the order of `statements.csv`; empty if `folder` holds no figure."""
    names = sorted(f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.json"))
    parts, seen = [], set()
    for row in statements():
        for name in fnmatch.filter(names, row["figure"]):
            if name not in seen:
                seen.add(name)
                parts.append(section(name, row, read_json(folder / f"{name}.json")))
    return "\n".join([HEAD, *parts]) if parts else ""


def section(name: str, row: dict[str, str], record: dict[str, Any]) -> str:
    """One figure: the paper's statement, the picture, the tests, and where it was made."""
    span = " to ".join(value for value in (row["low"], row["high"]) if value)
    said = row["statement"] + (f" ({span})" if span else "")
    lines = [
        f"## {record['title']}",
        "",
        f"**{row['source']}:** {said}",
        "",
        f"![{record['title']}]({name}.png)",
        "",
    ]
    lines += [record["note"], ""]
    if "training" in record:
        lines += [trained(record["training"]), ""]
    if record.get("checks"):
        columns = ("statement", "expected", "measured", "verdict")
        rows = [tuple(one[key] for key in columns) for one in record["checks"]]
        lines += [markdown_table(("statement", "expected", "found", "verdict"), rows), ""]
    command = record["command"].replace("studies.analyse", "scripts/analyse.sh", 1)
    made = f"`{command}`, commit {record['commit']}, {record['date']}, {where(record)}"
    return "\n".join([*lines, f"<sub>{made}; [JSON]({name}.json)</sub>", ""])


def trained(training: dict[str, Any]) -> str:
    """How the models of a figure were trained: what differs from the papers' setting."""
    return (
        f"Trained here: {training['layers']} layers of width {training['width']} on {training['corpus']}, "
        f"{training['updates']:,} updates of about {training['tokens_per_update']:,.0f} tokens, far from "
        "the papers' sizes and budgets."
    )
