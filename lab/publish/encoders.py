"""Encoders in pre-training: the papers' GLUE averages beside them."""

from collections.abc import Sequence
from pathlib import Path

from lab.methods import ENCODER_PANELS, ENCODERS, groups
from lab.publish.glue import PAPERS, average_with_note, paper_table
from lab.publish.plots import Curve, plot_curves
from lab.publish.tables import Section, markdown_table, note_of_seed, of_first_seed

ASKS = "Which encoders learn more than the frequencies of tokens, and after how many updates?"


def tables(section: Section) -> list[str]:
    """The averages that the papers print for each method, and what they are of."""
    averages = [
        {row["method"]: average_with_note(row, which) for row in paper_table(table)}
        for table, which in PAPERS.values()
    ]
    present = {record["cell"]["method"] for record in section.records}
    rows = []
    for name, method in ENCODERS.items():
        theirs = [
            found.get(row, "–") for found, row in zip(averages, (method.transnormer, method.lln), strict=True)
        ]
        if name in present and theirs != ["–", "–"]:
            rows.append([method.label, *theirs])
    header = [
        "GLUE averages of the papers",
        "of seven (MNLI m and mm, QNLI, QQP, SST-2, MRPC, CoLA), TransNormer's Table 5",
        "of four (MNLI m, QNLI, QQP, SST-2), LLN's Table 1",
    ]
    note = (
        "Where a method has fewer figures than the average counts, the average says so; a change in "
        "brackets is what LLN prints, against another baseline than its own."
    )
    return [markdown_table(header, rows), note]


def draw_curves(section: Section, source: str, path: Path) -> None:
    """Training loss of the first seed against updates, a panel a family of methods."""
    shown, curves = of_first_seed(section.records), {}
    for record in shown:
        points, method = record["training"]["curves"].get("train"), ENCODERS.get(record["cell"]["method"])
        if points and method:
            x, y = zip(*means(points), strict=True)
            curves[record["cell"]["method"]] = Curve(method.label, method.color, x, y)
    panels = [
        (title.strip(), "updates", "bits per masked token, train", [curves[name] for name in names])
        for title, names in groups(list(curves), ENCODER_PANELS).items()
    ]
    note = note_of_seed(shown)
    plot_curves(path, panels, asks=ASKS, note=note, log=False, markers=False, source=source)


def means(points: Sequence[Sequence[float]], count: int = 40) -> list[tuple[float, float]]:
    """A curve as `count` means of neighbouring points, at the last of each."""
    width = max(1, len(points) // count)
    parts = [points[start : start + width] for start in range(0, len(points), width)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


PICTURES = {"curves": draw_curves}
