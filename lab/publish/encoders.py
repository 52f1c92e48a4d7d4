"""Encoders: in pre-training with the papers' GLUE averages beside them, and fine-tuned on GLUE."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.glue_tasks import TASKS
from lab.methods import ENCODER_PANELS, ENCODERS, groups, label_of, performer_note
from lab.papers import read_table
from lab.publish.plots import Curve, level_line, plot_curves
from lab.publish.tables import (
    Extras,
    RecordGroup,
    finite,
    grouped,
    markdown_table,
    note_of_seed,
    of_first_seed,
)
from lab.store import Record

ASKS = "Which encoders learn more than the frequencies of tokens, and after how many updates?"


def average_tables(section: RecordGroup) -> list[str]:
    """The averages that the papers print for each method, and the tasks behind them."""
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


def draw_training(section: RecordGroup, source: str, path: Path) -> None:
    """Training loss of the first seed against updates, one panel per family of methods."""
    shown, curves = of_first_seed(section.records), {}
    for name, points in curves_of(section).items():
        x, y = zip(*means(points), strict=True)
        curves[name] = Curve(ENCODERS[name].label, ENCODERS[name].color, x, y)
    last = max(curve.x[-1] for curve in curves.values())
    level = shown[0]["found"]["valid"]["unigram_bits"]
    frequencies = level_line("token frequencies", (0, last), level)
    panels = [
        (title.strip(), "updates", "bits per masked token, train", [*map(curves.get, names), frequencies])
        for title, names in groups(list(curves), ENCODER_PANELS).items()
    ]
    note = note_of_seed(shown)
    plot_curves(path, panels, asks=ASKS, note=note, log=False, markers=False, source=source)


def curves_of(section: RecordGroup) -> dict[str, list[tuple[float, float]]]:
    """The training loss of the first seed, by method."""
    curves = {
        record["cell"]["method"]: finite(record["training"]["curves"].get("train", []))
        for record in of_first_seed(section.records)
    }
    return {name: points for name, points in curves.items() if name in ENCODERS and points}


def means(points: Sequence[Sequence[float]], count: int = 40) -> list[tuple[float, float]]:
    """A curve as `count` means of neighbouring points, at the last of each."""
    width = max(1, len(points) // count)
    parts = [points[start : start + width] for start in range(0, len(points), width)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


# Our column, and the columns of the papers' two tables.
COLUMNS = {
    ("MNLI", "valid"): ("mnli_m", "mnli"),
    ("MNLI", "valid1"): ("mnli_mm", None),
    ("QNLI", "valid"): ("qnli", "qnli"),
    ("QQP", "valid"): ("qqp", "qqp"),
    ("SST-2", "valid"): ("sst2", "sst2"),
    ("MRPC", "valid"): ("mrpc", None),
    ("CoLA", "valid"): ("cola", None),
    ("STS-B", "valid"): (None, None),
    ("RTE", "valid"): (None, None),
    ("WNLI", "valid"): (None, None),
}
PAPERS = {
    "TransNormer, Table 5": ("transnormer_05_glue", 0),
    "LLN, Table 1": ("lln_01_glue", 1),
}
# The figures each paper averages, in the order of PAPERS: all that it has.
AVERAGED = tuple([names[which] for names in COLUMNS.values() if names[which]] for which in (0, 1))
AVERAGES = ("average of 7, as TransNormer's", "average of 4, as LLN's")


def task_tables(section: RecordGroup) -> list[str]:
    """Every encoder's row over all tasks, and the papers' rows."""
    return [write_table(section.records)]


def write_table(records: Sequence[Record]) -> str:
    """Our rows and the papers', by task; figures of parts of a data set are marked.

    The records have each encoder's best learning rate.
    """
    encoders = grouped(sorted(records, key=encoder_rank), name_of)
    columns = [column for column in COLUMNS if any(of_column(group, *column) for group in encoders.values())]
    titles = (column_title(task, split) for task, split in columns)
    rows = [
        [
            label_of(name),
            f"{group[0]['found']['parameters'] / 1e6:.2f}",
            *(our_figure(of_column(group, *column), *column) for column in columns),
            *(our_average(group, which) for which in range(len(PAPERS))),
        ]
        for name, group in encoders.items()
    ]
    guessing = [majority_figure(records, *column) for column in columns]
    if any(figure != "–" for figure in guessing):
        rows.append(["the most frequent class", "–", *guessing, *["–"] * len(PAPERS)])
    rows += paper_rows(columns)
    header = ["", "million parameters", *titles, *AVERAGES]
    return markdown_table(header, rows) + "\n\n" + "\n".join(notes(records, encoders))


def name_of(record: Record) -> str:
    """The encoder: the method if the study has that axis, or the architecture."""
    return record["cell"].get("method") or f"{record['found']['architecture']}, here"


def encoder_rank(record: Record) -> int:
    """The place of its encoder in the order of all tables."""
    names = list(ENCODERS)
    return names.index(name) if (name := name_of(record)) in names else len(names)


def of_column(records: Sequence[Record], task: str, split: str) -> list[Record]:
    """The records of a task that have the split."""
    return [one for one in records if one["found"]["task"] == task and split in one["found"]["dev"]]


def figures_of(records: Sequence[Record], task: str, split: str, metric: str) -> list[float]:
    """A metric of a task over the seeds."""
    return [one["found"]["dev"][split][metric] for one in of_column(records, task, split)]


def our_figure(records: Sequence[Record], task: str, split: str) -> str:
    """Mean and range over the seeds of each metric; a dash without a record."""
    if not records:
        return "–"
    parts = []
    for metric in TASKS[task].metrics:
        values = figures_of(records, task, split, metric)
        text = f"{statistics.mean(values):.2f}"
        if min(values) != max(values):
            text += f" ({min(values):.2f} to {max(values):.2f})"
        parts.append(text)
    return " / ".join(parts) + ("*" if records[0]["found"]["partial"] else "")


def majority_figure(records: Sequence[Record], task: str, split: str) -> str:
    """The score of always answering the most frequent class of train; a dash for scores and for MNLI's mm."""
    found = [one["found"]["majority"] for one in of_column(records, task, split)]
    if not found or found[0] is None or split != "valid":
        return "–"
    return " / ".join(f"{found[0][metric]:.2f}" for metric in TASKS[task].metrics)


def paper_rows(columns: Sequence[tuple[str, str]]) -> list[list[str]]:
    """The rows of the papers that have a figure in one of the columns."""
    rows = []
    for title, (table, which) in PAPERS.items():
        for row in paper_table(table):
            figures = [paper_figure(row, COLUMNS[column][which]) for column in columns]
            if any(figure != "–" for figure in figures):
                average = average_with_note(row, which)
                averages = [average if i == which else "–" for i in range(len(PAPERS))]
                name = f"{row['method']} ({title})"
                rows.append([name, paper_figure(row, "params_m"), *figures, *averages])
    return rows


def notes(records: Sequence[Record], encoders: Mapping[str, Any]) -> list[str]:
    """How the papers' rows differ from ours and from each other."""
    found = [
        "Dev sets, in percent. Here: mean over the seeds at the best learning rate; the seeds are ours, the "
        "weight decay is fairseq's, as LLN's recipe is; TransNormer gives neither. The papers: pre-trained "
        "on WikiText-103 at RoBERTa-base size, TransNormer with its Table 13, LLN's own rows with fairseq's "
        "default configuration in FP16. In LLN's table ELU, Performer, LS, FLASH, T1 and T2 are "
        "TransNormer's Table 5; Reformer, Longformer, cosFormer, TNN and Nyströmformer are, by their digits, "
        "quoted from other papers. TransNormer averages seven figures and counts a dash as 0; LLN averages "
        "four, of MNLI the matched one, and leaves a dash out. The change beside a figure of Nyströmformer "
        "is the paper's, against another baseline.",
        *performer_note(encoders),
    ]
    tasks = list(dict.fromkeys(one["found"]["task"] for one in records))
    cut = {one["found"]["task"]: one["found"].get("cut") for one in records}
    if long := [f"{task} {count:,}" for task, count in cut.items() if count]:
        found.append(f"Examples cut to the positions of the encoder: {', '.join(long)}.")
    if partial := [
        task for task in tasks if any(o["found"]["partial"] for o in records if o["found"]["task"] == task)
    ]:
        found.append(
            f"* Parts of {', '.join(partial)} only: these figures cannot be compared with published ones."
        )
    return found


def average_with_note(row: Mapping[str, str], which: int) -> str:
    """The average that a paper prints, and the number of tasks behind it where a figure is missing."""
    values = [row[column] for column in AVERAGED[which]]
    there = [float(value) for value in values if value != "-"]
    text = paper_figure(row, "avg")
    if len(there) == len(values):
        return text
    if which == 0:
        mean = sum(there) / len(there)
        return f"{text} (a run that did not converge counts as 0; {mean:.2f} over the other {len(there)})"
    return f"{text} (of {len(there)} tasks)"


def our_average(records: Sequence[Record], which: int) -> str:
    """The average of our figures over a paper's columns; a dash unless all tasks were run."""
    columns = [column for column, names in COLUMNS.items() if names[which]]
    figures = [figures_of(records, *column, TASKS[column[0]].metrics[0]) for column in columns]
    if not all(figures):
        return "–"
    partial = any(record["found"]["partial"] for record in records)
    return f"{statistics.fmean(map(statistics.mean, figures)):.2f}" + ("*" if partial else "")


def paper_figure(row: Mapping[str, str], column: str | None) -> str:
    """A figure of a paper's row as printed there, or a dash."""
    figure = row.get(column or "", "-")
    return "–" if figure == "-" else f"{figure}{row.get(f'{column} change', '')}"


def paper_table(table: str) -> list[dict[str, str]]:
    """A paper's rows; the changes that LLN prints beside Nyströmformer's figures are in "COLUMN change"."""
    rows = read_table(table)
    if table == "lln_01_glue":
        changes = {row.pop("method"): row for row in read_table("lln_01_glue_changes")}
        for row in rows:
            beside = changes.get(row["method"], {})
            row.update({f"{column} change": f" ({value})" for column, value in beside.items()})
    return rows


def column_title(task: str, split: str) -> str:
    """Such as "MNLI mm, accuracy"."""
    sets = {"valid": " m", "valid1": " mm"} if len(TASKS[task].dev_splits) > 1 else {}
    return f"{task}{sets.get(split, '')}, {' / '.join(TASKS[task].metrics)}"


EXTRAS = {
    "glue": Extras(task_tables),
    "masked_lm": Extras(average_tables, {"curves": draw_training}, {"curves": curves_of}),
}
