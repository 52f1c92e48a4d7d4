"""From the records of `lra_speed.py` to tables beside the papers'; plots of speed, memory, accuracy."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.methods import ATTENTION_PANELS, ATTENTIONS, Size, groups, label_of, performer_note
from pipeline.papers import read_table
from pipeline.reports.costs.lm_cost import measured_on
from pipeline.reports.plots import Bubble, Curve, plot_bubbles, plot_curves
from pipeline.reports.tables import markdown_table

KINDS = ("inference", "training")
PAPER_STEPS = 50_000  # of a run in LLN's Table 4
TITLES = {
    "text": "Text",
    "listops": "ListOps",
    "retrieval": "Retrieval",
    "pathfinder": "Pathfinder",
    "image": "Image",
}
"""The tasks that the papers average, in the order of their tables."""
DASH = "–"

Record = dict[str, Any]
Results = dict[str, Any]
Value = Callable[[Record], float]


def find(results: Results, kind: str, name: str, length: int) -> Record | None:
    """The record of a case, None if it was not measured."""
    key = (kind, name, length)
    found = (r for r in results["records"] if (r["kind"], r["architecture"], r["length"]) == key)
    return next(found, None)


def steps_per_second(record: Record) -> float:
    """1 / the median time of a step."""
    return 1 / statistics.median(record["step_seconds"])


def tokens_per_second(record: Record) -> float:
    """Real tokens, padding not counted: the median over the steps."""
    pairs = zip(record["step_tokens"], record["step_seconds"], strict=True)
    return statistics.median(tokens / seconds for tokens, seconds in pairs)


def peak(record: Record) -> float:
    """Peak memory of a step above model, optimizer state and libraries, in MiB."""
    return record["peak_bytes"] / 2**20


def whole_peak(record: Record) -> float:
    """The same with all that was in use before: of the process, on a GPU of torch's allocator."""
    return record["whole_peak_bytes"] / 2**20


def _shown(record: Record | None, value: Value, form: str, limit: float) -> str:
    if record is None:
        return "not measured"
    if record["status"] == "ok":
        return form.format(value(record))
    words = {"out of memory": DASH, "time limit": f"over {limit:g} s"}
    return words.get(record["status"], record["status"])


def table(results: Results, title: str, kind: str, value: Value, form: str, paper: str = "") -> str:
    """A row an attention, a column a length; with `paper`, "infer" or "train", TransNormer's rows below."""
    settings = results["settings"]
    rows = []
    for name in settings["architectures"]:
        records = [find(results, kind, name, n) for n in settings["lengths"]]
        figures = [_shown(record, value, form, settings["time_limit"]) for record in records]
        rows.append([f"{label_of(name)}, here", *figures])
    if paper:
        for row in read_table("transnormer_07_lra_speed"):
            figures = [row.get(f"{paper}_{n // 1000}k", "-") for n in settings["lengths"]]
            rows.append([f"{row['model']} (TransNormer)", *(f.replace("-", DASH) for f in figures)])
    return f"{title}\n\n" + markdown_table(["", *(f"{n:,}" for n in settings["lengths"])], rows)


def lln_table() -> str:
    """LLN's Table 4: seconds of a run and MiB."""
    tasks = list(TITLES)
    header = ["LLN, Table 4", *(f"{TITLES[task]}, {unit}" for unit in ("s", "MiB") for task in tasks)]
    rows = [
        [row["method"], *(row[f"{kind}_{task}"] for kind in ("time", "mem") for task in tasks)]
        for row in read_table("lln_04_lra_cost")
    ]
    return markdown_table(header, rows)


def caption(results: Results) -> str:
    """One paragraph: model, batch, lengths, machine, versions, day."""
    settings = results["settings"]
    if settings["mode"] == "exact":
        rows = "random tokens, every row of the length named"
    else:
        data = settings["data"]
        rows = (
            f"reviews ({data['origin']} data, {data['examples']['train']:,}) cut to the length named, a "
            "batch padded to its longest"
        )
    batch = settings["batch"]
    return (
        f"Classifier of Text, {Size(**settings['size'])}; blocks of 32; float32; {batch} "
        f"row{'s' if batch > 1 else ''} a batch, {rows}. Inference: forward without gradients in evaluation "
        "mode; training: forward, backward and Adam. Every case in a process of its own; medians of "
        f"{_steps(results)}. {measured_on(results)}"
    )


def _steps(results: Results) -> str:
    """How many steps were timed, and in how many cases fewer, for want of time."""
    wanted, done = results["settings"]["steps"], [x for x in results["records"] if x["status"] == "ok"]
    fewer = sum(len(record["step_seconds"]) < wanted for record in done)
    exceptions = f", in {fewer} of {len(done)} cases of fewer, which took long" if fewer else ""
    return f"{wanted} steps{exceptions}"


def differences(results: Results) -> str:
    """How the papers' settings differ, and what the words in the tables mean."""
    return (
        "The papers' rows are of other machines: compare how columns grow and how rows relate. TransNormer, "
        "Table 7: steps per second at batch 20 on one A6000; its columns are where reviews are cut, and by "
        "the authors' code a batch is only as long as its longest review, 3,730 characters on average at "
        f"5,000. LLN, Table 4: seconds of all {PAPER_STEPS:,} training steps with the evaluations on valid, "
        "evidently with Skyformer's code: 2 layers of 64, batch 32, 32, 16, 128 and 256 at lengths 4,096, "
        "2,048, 4,096 twice, 1,024 and 1,024, softmax with activation checkpointing; memory is the "
        "allocator's peak. "
        f'"{DASH}": out of memory; "over {results["settings"]["time_limit"]:g} s": the process was ended.'
    )


def markdown(results: Results) -> str:
    """The whole report."""
    scaled = f"Seconds of {PAPER_STEPS:,} training steps, scaled from the median of those timed:"
    parts = [
        caption(results),
        table(results, "Steps per second, inference:", "inference", steps_per_second, "{:.2f}", "infer"),
        table(results, "Steps per second, training:", "training", steps_per_second, "{:.2f}", "train"),
        table(results, "Tokens per second, inference:", "inference", tokens_per_second, "{:,.0f}"),
        table(results, "Tokens per second, training:", "training", tokens_per_second, "{:,.0f}"),
        table(results, "Peak memory of inference, MiB:", "inference", peak, "{:,.0f}"),
        table(results, "Peak memory of a training step, MiB:", "training", peak, "{:,.0f}"),
        table(results, "The same of the whole process, MiB:", "training", whole_peak, "{:,.0f}"),
        table(results, scaled, "training", lambda r: PAPER_STEPS / steps_per_second(r), "{:,.0f}"),
        lln_table(),
        differences(results),
        *performer_note(results["settings"]["architectures"]),
    ]
    return "\n\n".join(parts) + "\n"


def _curves(results: Results, names: Sequence[str], kind: str, value: Value) -> list[Curve]:
    curves = []
    for name in names:
        records = [(n, find(results, kind, name, n)) for n in sorted(results["settings"]["lengths"])]
        points = [(n, value(record)) for n, record in records if record and record["status"] == "ok"]
        if points:
            method = ATTENTIONS[name]
            curves.append(Curve(method.label, method.color, *zip(*points, strict=True)))
    return curves


def plot(results: Results, path: Path) -> None:
    """Steps per second and peak memory in one PNG, log axes; a row for every group of attentions."""
    length, panels = "length, tokens", []
    for title, names in groups(results["settings"]["architectures"], ATTENTION_PANELS).items():
        for kind in KINDS:
            curves = _curves(results, names, kind, steps_per_second)
            panels.append((f"{kind.capitalize()}{title}", length, "steps per second", curves))
        memory = _curves(results, names, "training", peak)
        panels.append((f"Memory of training{title}", length, "MiB", memory))
    plot_curves(path, panels, columns=3, note=caption(results))


def means_over_tasks(cells: Sequence[Record]) -> tuple[list[str], dict[str, float]]:
    """Those of the five tasks that `cells` has, and its known attentions' mean accuracy over them.

    Leaves out attentions that lack one of them. Raises UserError if all do.
    """
    tasks = [task for task in TITLES if any(cell["cell"]["task"] == task for cell in cells)]
    means = {}
    for name in ATTENTIONS:
        own = [cell for cell in cells if cell["cell"]["method"] == name]
        by_task = [[cell["found"]["accuracy"] for cell in own if cell["cell"]["task"] == x] for x in tasks]
        if by_task and all(by_task):
            means[name] = statistics.fmean(map(statistics.fmean, by_task))
    if not means:
        raise UserError("no attention was run on all tasks of the sweep; run what is missing first")
    return tasks, means


def plot_accuracy(results: Results, cells: Sequence[Record], path: Path) -> None:
    """Accuracy of a sweep against training speed at the longest length, areas the peak memory, as a PNG.

    Shows the attentions that have both, and all tasks of the sweep; UserError if there are none. `cells`:
    records of study `lra` of one preset and setting.
    """
    length = max(results["settings"]["lengths"])
    tasks, means = means_over_tasks(cells)
    bubbles = []
    for name, mean in means.items():
        record = find(results, "training", name, length)
        if record and record["status"] == "ok":
            method = ATTENTIONS[name]
            bubbles.append(Bubble(method.label, method.color, steps_per_second(record), mean, peak(record)))
    if not bubbles:
        raise UserError(f"no attention has both an accuracy and a speed at length {length:,}; measure more")
    steps = {cell["cell"]["task"]: cell["training"]["updates"] for cell in cells}
    trained = ", ".join(
        TITLES[task] + (f" ({steps[task]:,} updates)" if steps[task] else "") for task in tasks
    )
    plot_bubbles(
        path,
        bubbles,
        title="Accuracy, speed and memory (area)",
        x_label=f"training steps per second at {length:,} tokens",
        y_label=f"mean accuracy on test over {len(tasks)} tasks, %",
        note=f"Areas: {min(b.area for b in bubbles):,.0f} to {max(b.area for b in bubbles):,.0f} MiB. "
        f"Accuracy: {cells[0]['cell']['preset']} on {trained}. Speed: {caption(results)}",
    )
