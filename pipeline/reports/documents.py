"""Generate the tables and learning curves of the documents from results/measured/ and results/paper/.

A table lives between two comments in results/README.md, README.md or docs/operator.md; what is between them
is replaced, the prose around them is left alone. No figure in a table is typed by hand.
"""

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipeline.errors import UserError
from pipeline.files import MEASURED, ROOT, read_json, shown_path, write_atomically
from pipeline.reports import carried_state
from pipeline.reports.costs import (
    attention_cost,
    encoder_cost,
    image_cost,
    lm_cost,
    loss_cost,
    lra_speed,
    operator_cost,
    packed_cost,
    speech_cost,
)
from pipeline.reports.faults import survivors
from pipeline.reports.quickstart import quickstart_table
from pipeline.reports.tables import where

DEVICES = ("cpu", "cuda")
DOCUMENTS = (
    ROOT / "results" / "README.md",
    ROOT / "README.md",
    ROOT / "docs" / "commands.md",
    ROOT / "docs" / "operator.md",
)


def picture_link(title: str, path: Path, document: Path) -> str:
    """A link from `document` to the picture `path`; empty if there is none."""
    if not path.is_file():
        return ""
    return f"![{title}]({os.path.relpath(path, document.parent)})"


def not_measured(script: str) -> str:
    """What stands where figures would be."""
    return f"Not measured yet; `{script}` measures it."


Render = Callable[[dict], str]


def cost(script: str, path: Path, render: Render, title: str, document: Path) -> str:
    """A cost benchmark's tables and plot."""
    if not path.is_file():
        return not_measured(script)
    return f"{render(read_json(path))}\n{picture_link(title, path.with_suffix('.png'), document)}"


AGAINST_LENGTH = "Time and memory against length"
COSTS: dict[str, tuple[Render, str]] = {
    "lm_cost": (lm_cost.markdown, AGAINST_LENGTH),
    "roberta_cost": (encoder_cost.markdown, AGAINST_LENGTH),
    "loss_cost": (loss_cost.markdown, AGAINST_LENGTH),
    "packed_cost": (packed_cost.markdown, AGAINST_LENGTH),
    "lra_speed": (lra_speed.markdown, AGAINST_LENGTH),
    "attention_cost": (attention_cost.markdown, AGAINST_LENGTH),
    "speech_cost": (speech_cost.markdown, "Time and memory of a training step"),
    "image_cost": (image_cost.markdown, "Images per second by batch size"),
}
"""By the name of the benchmark: what makes tables of its record, and the title of its plot."""


def measured_cost(name: str, device: str, document: Path) -> str:
    """What a benchmark of `COSTS` measured on "cpu" or "cuda"."""
    path = MEASURED / f"{name}_{device}.json"
    return cost(f"benchmarks/{name}.py", path, *COSTS[name], document)


def accuracy_by_speed(device: str, document: Path) -> str:
    """The bubbles of Long Range Arena's accuracy, speed and memory, on "cpu" or "cuda"."""
    path = MEASURED / f"lra_speed_{device}_accuracy.png"
    if not path.is_file():
        return not_measured("benchmarks/lra_speed.py")
    return picture_link("Accuracy, speed and memory", path, document)


def operator(device: str, document: Path) -> str:
    """What the operator costs on "cpu" or "cuda"."""
    path = MEASURED / f"operator_{device}" / "operator_cost.json"
    return cost("benchmarks/operator_cost.py", path, operator_cost.report, AGAINST_LENGTH, document)


def crossover(document: Path) -> str:
    """The sequence length above which the operator beats softmax on a CPU."""
    path = MEASURED / "operator_cpu" / "operator_cost.json"
    if not path.is_file():
        return not_measured("benchmarks/operator_cost.py")
    record = read_json(path)
    return f"{operator_cost.crossover_table(record)}\n\n{where(record['environment'])}"


def quickstart(document: Path) -> str:
    """The table that quickstart.sh ended with when its result was kept."""
    path = MEASURED / "quickstart.json"
    if not path.is_file():
        return not_measured("scripts/quickstart.sh")
    record = read_json(path)
    return f"```text\n{quickstart_table(record['models'])}\n```\n\n{where(record)}"


def faults(document: Path) -> str:
    """How many broken runs resumed."""
    path = MEASURED / "fault_check.json"
    if not path.is_file():
        return not_measured("scripts/fault_check.sh")
    record = read_json(path)
    return survivors(record, where(record))


def long_stream(document: Path) -> str:
    """Perplexity, speed and memory by position in a stream of millions of tokens."""
    path = MEASURED / "carried_stream.json"
    script = "scripts/eval_ppl.sh CHECKPOINT DATA --carry-state --split train"
    return cost(script, path, carried_state.markdown, "Perplexity, speed and memory by position", document)


SECTIONS: dict[str, Callable[[Path], str]] = {
    "quickstart": quickstart,
    **{
        f"{name.replace('_', '-')}-{device}": partial(measured_cost, name, device)
        for name in COSTS
        for device in DEVICES
    },
    **{f"lra-accuracy-{device}": partial(accuracy_by_speed, device) for device in DEVICES},
    **{f"operator-{device}": partial(operator, device) for device in DEVICES},
    "crossover": crossover,
    "carried-stream": long_stream,
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
        return f"{start}\n{SECTIONS[name](document).strip()}\n\n{end}"

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
