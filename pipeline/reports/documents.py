"""Generate the tables and learning curves of the documents from results/measured/ and results/paper/.

A table lives between two comments in results/README.md, README.md or docs/operator.md; what is between them
is replaced, the prose around them is left alone. No figure in a table is typed by hand.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image

from pipeline.commands.reports.make_results import parse
from pipeline.errors import UserError
from pipeline.files import MEASURED, ROOT, fingerprint, read_json, shown_path, write_atomically
from pipeline.reports import carried_state, copying, pixels, vit
from pipeline.reports.carried_training import plot_carried, read_carried, write_carried_table
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
from pipeline.reports.encoders import glue_section, plot_encoders, read_encoders
from pipeline.reports.encoders import runs_section as encoders_section
from pipeline.reports.faults import survivors
from pipeline.reports.language_models import (
    comparison_section,
    plot_learning_curves,
    read_runs,
    runs_section,
)
from pipeline.reports.lra import read_cells, write_table
from pipeline.reports.quickstart import quickstart_table
from pipeline.reports.tables import where

WIKITEXT2 = MEASURED / "wikitext2"
ROBERTA = MEASURED / "roberta_wikitext2"
ROBERTA_CURVES = ROOT / "results" / "roberta_wikitext2_curves.png"
CURVES = ROOT / "results" / "wikitext2_curves.png"
DEVICES = ("cpu", "cuda")
DOCUMENTS = (ROOT / "results" / "README.md", ROOT / "README.md", ROOT / "docs" / "operator.md")


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
    return f"{survivors(record)} ({where(record)})"


def long_stream(document: Path) -> str:
    """Perplexity, speed and memory by position in a stream of millions of tokens."""
    path = MEASURED / "carried_stream.json"
    script = "scripts/eval_ppl.sh CHECKPOINT DATA --carry-state --split train"
    return cost(script, path, carried_state.markdown, "Perplexity, speed and memory by position", document)


@dataclass(frozen=True)
class Sweep:
    """The finished runs of a sweep, and what makes a table and, where there is one, a picture of them."""

    script: str
    folder: Path
    read: Callable[[Path], list[dict]]
    write: Callable[[Sequence[dict]], str]
    title: str = ""
    plot: Callable[[Sequence[dict], Path], None] | None = None

    @property
    def picture(self) -> Path:
        """Where `plot` draws."""
        return ROOT / "results" / f"{self.folder.name}_curves.png"


SWEEPS = {
    "lra": Sweep("scripts/lra_table.sh", MEASURED / "lra", read_cells, write_table),
    "lra-learned": Sweep("scripts/lra_table.sh", MEASURED / "lra_learned", read_cells, write_table),
    "lra-listops": Sweep("scripts/lra_table.sh", MEASURED / "lra_listops", read_cells, write_table),
    "carried": Sweep(
        "scripts/measure_carried.sh",
        MEASURED / "carried",
        read_carried,
        write_carried_table,
        "Perplexity by position",
        plot_carried,
    ),
    "copy": Sweep(
        "scripts/measure_copy.sh --preset tiny",
        MEASURED / "copy",
        copying.read_results,
        copying.write_copy_table,
        "Loss while learning to copy",
        copying.plot_copying,
    ),
    "images": Sweep(
        "scripts/measure_images.sh",
        MEASURED / "images",
        pixels.read_results,
        pixels.write_pixel_table,
        "Digits drawn and completed",
        pixels.plot_pixels,
    ),
    "vit": Sweep(
        "scripts/measure_vit.sh",
        MEASURED / "vit",
        vit.read_results,
        vit.write_vit_table,
        "Accuracy and exponents",
        vit.plot_vit,
    ),
}


def sweep(name: str, document: Path) -> str:
    """The table and the picture of a sweep."""
    about = SWEEPS[name]
    results = about.read(about.folder)
    if not results:
        return not_measured(about.script)
    return f"{about.write(results)}\n\n{picture_link(about.title, about.picture, document)}"


SECTIONS: dict[str, Callable[[Path], str]] = {
    "wikitext2": lambda document: comparison_section(read_runs(WIKITEXT2)),
    "wikitext2-runs": lambda document: runs_section(read_runs(WIKITEXT2)),
    "wikitext2-curves": lambda document: picture_link("Learning curves", CURVES, document),
    "roberta": lambda document: glue_section(read_encoders(ROBERTA)),
    "roberta-runs": lambda document: encoders_section(read_encoders(ROBERTA)),
    "roberta-curves": lambda document: picture_link("Masked-LM loss", ROBERTA_CURVES, document),
    "quickstart": quickstart,
    **{
        f"{name.replace('_', '-')}-{device}": partial(measured_cost, name, device)
        for name in COSTS
        for device in DEVICES
    },
    **{f"lra-accuracy-{device}": partial(accuracy_by_speed, device) for device in DEVICES},
    **{name: partial(sweep, name) for name in SWEEPS},
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


@dataclass(frozen=True)
class Picture:
    """Learning curves drawn from the results of a folder."""

    path: Path
    read: Callable[[], list[dict]]
    plot: Callable[[list[dict], Path], None]

    def is_current(self) -> bool:
        """Whether it was drawn from the results that are there."""
        runs = self.read()
        if not runs:
            return True
        if not self.path.is_file():
            return False
        with Image.open(self.path) as picture:
            return picture.info.get("Source") == fingerprint(runs)


def pictures() -> tuple[Picture, ...]:
    """The learning curves of results/."""
    return (
        Picture(CURVES, lambda: read_runs(WIKITEXT2), plot_learning_curves),
        Picture(ROBERTA_CURVES, lambda: read_encoders(ROBERTA), plot_encoders),
        *(Picture(x.picture, partial(x.read, x.folder), x.plot) for x in SWEEPS.values() if x.plot),
    )


def stale() -> list[Path]:
    """The documents and pictures that the measured results have left behind."""
    found = []
    for document in filter(Path.is_file, DOCUMENTS):
        text = document.read_text(encoding="utf-8")
        if filled(text, document) != text:
            found.append(document)
    return found + [picture.path for picture in pictures() if not picture.is_current()]


def write_all() -> None:
    """Bring pictures and documents up to date."""
    for picture in pictures():
        if not picture.is_current():
            picture.plot(picture.read(), picture.path)
            print(f"written: {shown_path(picture.path)}")
    for document in filter(Path.is_file, DOCUMENTS):
        text = document.read_text(encoding="utf-8")
        new = filled(text, document)
        if new != text:
            write_atomically(document, new.encode())
            print(f"written: {shown_path(document)}")


def main() -> None:
    """Entry point."""
    if not parse(sys.argv[1:]).check:
        write_all()
    elif old := stale():
        names = ", ".join(shown_path(path) for path in old)
        raise UserError(f"{names} out of date; run scripts/make_results.sh and commit what it writes")
    print("Tables and plots are up to date with the measured results.")
