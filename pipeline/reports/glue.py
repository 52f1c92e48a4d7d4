"""The result of a GLUE sweep as a table, with the papers' rows next to it."""

from collections.abc import Mapping
from typing import Any

from pipeline.glue_tasks import TASKS
from pipeline.methods import performer_note
from pipeline.papers import read_table
from pipeline.reports.tables import markdown_table

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
# The figures each paper averages, in the order of PAPERS.
AVERAGED = (
    ("mnli_m", "mnli_mm", "qnli", "qqp", "sst2", "mrpc", "cola"),
    ("mnli", "qnli", "qqp", "sst2"),
)
AVERAGES = ("average of 7, as TransNormer's", "average of 4, as LLN's")


def task_sentence(result: Mapping[str, Any]) -> str:
    """A cell's figures in a few words."""
    metric = TASKS[result["task"]].metrics[0]
    values = ", ".join(f"{figures[metric]:.2f}" for figures in result["dev"].values())
    return f"dev {metric} {values} after {result['updates']} updates"


def write_table(record: Mapping[str, Any]) -> str:
    """Our row and the papers', by task; figures of parts of a data set are marked."""
    columns = [
        column for column in COLUMNS if (record["tasks"].get(column[0]) or {}).get("best")
        and column[1] in record["tasks"][column[0]]["best"]["dev"]
    ]  # fmt: skip
    header = ["", "million parameters", *(column_title(task, split) for task, split in columns), *AVERAGES]
    ours = [our_figure(record, *column) for column in columns]
    averages = [our_average(record, which) for which in range(len(PAPERS))]
    rows = [[f"{record['architecture']}, here", f"{record['parameters'] / 1e6:.2f}", *ours, *averages]]
    for title, (table, which) in PAPERS.items():
        for row in read_table(table):
            figures = [paper_figure(row, COLUMNS[column][which]) for column in columns]
            if any(figure != "–" for figure in figures):
                averages = [row["avg"] if i == which else "–" for i in range(len(PAPERS))]
                name = f"{row['method']} ({title})"
                rows.append([name, paper_figure(row, "params_m"), *figures, *averages])
    notes = [
        "Dev sets. Here: mean over the seeds at the best learning rate; seeds and weight decay are ours, the "
        "papers give neither. The papers: pre-trained on WikiText-103 at RoBERTa-base size, TransNormer with "
        "its Table 13, LLN's own rows with fairseq's default configuration in FP16. In LLN's table ELU, "
        "Performer, LS, FLASH, T1 and T2 are TransNormer's Table 5; Reformer, Longformer, cosFormer, TNN and "
        "Nyströmformer are, by their digits, quoted from other papers. TransNormer averages seven figures "
        "and counts a dash as 0; LLN averages four, of MNLI the matched one, and leaves a dash out.",
    ]
    notes += performer_note([record["architecture"]])
    partial = [name for name, task in record["tasks"].items() if task["partial"]]
    if partial:
        notes.append(
            f"* Parts of {', '.join(partial)} only: these figures cannot be compared with published ones."
        )
    return markdown_table(header, rows) + "\n\n" + "\n".join(notes)


def paper_average(figures: Mapping[str, str], which: int) -> float:
    """The average of a paper's row by its own definition: of TransNormer (0) or LLN (1)."""
    values = [figures[column] for column in AVERAGED[which]]
    numbers = [float(value) for value in values if value != "-"]
    return sum(numbers) / (len(values) if which == 0 else len(numbers))


def our_average(record: Mapping[str, Any], which: int) -> str:
    """The same of our figures; a dash unless all tasks were run."""
    figures = {}
    for (task, split), names in COLUMNS.items():
        best = (record["tasks"].get(task) or {}).get("best")
        if names[which] and best and split in best["dev"]:
            figures[names[which]] = str(best["dev"][split][TASKS[task].metrics[0]]["mean"])
    if not all(name in figures for name in AVERAGED[which]):
        return "–"
    partial = any(record["tasks"][task]["partial"] for task, _ in COLUMNS if record["tasks"].get(task))
    return f"{paper_average(figures, which):.2f}" + ("*" if partial else "")


def paper_figure(row: Mapping[str, str], column: str | None) -> str:
    """A figure of a paper's row as printed there, or a dash."""
    figure = row.get(column or "", "-")
    return "–" if figure == "-" else figure


def column_title(task: str, split: str) -> str:
    """Such as "MNLI mm, accuracy"."""
    sets = {"valid": " m", "valid1": " mm"} if len(TASKS[task].dev_splits) > 1 else {}
    return f"{task}{sets.get(split, '')}, {TASKS[task].metrics[0]}"


def our_figure(record: Mapping[str, Any], task: str, split: str) -> str:
    """Mean and range over the seeds."""
    entry = record["tasks"][task]
    figures = entry["best"]["dev"][split][TASKS[task].metrics[0]]
    text = f"{figures['mean']:.2f}"
    if figures["lowest"] != figures["highest"]:
        text += f" ({figures['lowest']:.2f} to {figures['highest']:.2f})"
    return text + ("*" if entry["partial"] else "")
