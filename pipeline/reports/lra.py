"""The results of an LRA sweep as a table, with the papers' rows of the same data pipeline."""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.methods import ATTENTIONS, performer_note
from pipeline.papers import read_table
from pipeline.reports.sweeps import over_seeds
from pipeline.reports.tables import markdown_table, where

TITLES = {
    "text": "Text",
    "listops": "ListOps",
    "retrieval": "Retrieval",
    "pathfinder": "Pathfinder",
    "image": "Image",
    "path-x": "Path-X",
}
FIVE = tuple(TITLES)[:5]
"""The tasks that the papers average, in the order of their tables."""

# TransNormer's Table 6 mixes two pipelines: these rows are the authors' own runs, in that of the state-space
# models; the others are copied from Skyformer's paper.
OWN_RUNS = ("LS", "cosFormer", "FLASH-quad", "FLASH", "TransNormer T1", "TransNormer T2")
SKYFORMER, STATE_SPACE = "lra_skyformer", "lra_state_space"

# Layers and width: those of both presets, and of TransNormer's own rows in their released scripts, where they
# differ from task to task. Those of LLN's rows are not known.
PRESET_SIZE = (2, 64)
OWN_SIZES = {
    "LS": "4 to 6 × 64 to 512",
    "cosFormer": "4 to 6 × 64 to 512",
    "FLASH-quad": "6 to 11 × 128 to 512",
    "FLASH": "5 to 12 × 64 to 512",
}

Cell = dict[str, Any]
NEEDED = {
    *("task", "preset", "attention", "seed", "accuracy", "flags", "steps", "data", "published_sizes"),
    "parameters",
}


def read_cells(folder: Path) -> list[Cell]:
    """The finished runs of scripts/lra_table.sh in `folder`, sorted by name; UserError for another file."""
    cells = {path: read_json(path) for path in sorted(folder.glob("*/*/seed*.json"))}
    for path, cell in cells.items():
        if not isinstance(cell, dict) or not cell.keys() >= NEEDED:
            raise UserError(f"{path} is no result of scripts/lra_table.sh; move it away")
    return list(cells.values())


def paper_rows(preset: str) -> list[tuple[str, dict[str, str]]]:
    """The papers' rows of the pipeline of `preset`, each with its title."""
    transnormer = read_table("transnormer_06_lra")
    if preset == STATE_SPACE:
        own = [row for row in transnormer if row["model"] in OWN_RUNS]
        return [(f"{row['model']} (TransNormer, Table 6)", row) for row in own]
    copied = [row for row in transnormer if row["model"] not in OWN_RUNS]
    titled = [(f"{row['model']} (Skyformer's, in TransNormer, Table 6)", row) for row in copied]
    return titled + [(f"{row['method']} (LLN, Table 5)", row) for row in read_table("lln_05_lra")]


def paper_size(row: dict[str, str]) -> str:
    """Layers and width of a row of the papers; a dash where they are not given."""
    return OWN_SIZES.get(row["model"], size_text(*PRESET_SIZE)) if "model" in row else "–"


def our_size(cells: Sequence[Cell], attention: str) -> str:
    """Layers and width of our row, and the parameters, which depend on the task."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag, usual in zip(("--encoder-layers", "--encoder-embed-dim"), PRESET_SIZE, strict=True):
        parser.add_argument(flag, type=int, default=usual)
    own = [cell for cell in cells if cell["attention"] == attention]
    sizes = [vars(parser.parse_known_args(cell["flags"])[0]).values() for cell in own]
    counts = sorted({cell["parameters"] for cell in own})
    shown = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    return f"{' or '.join(dict.fromkeys(size_text(*size) for size in sizes))}; {shown} parameters"


def size_text(layers: int, width: int) -> str:
    """Such as "2 × 64"."""
    return f"{layers} × {width}"


def write_table(cells: Sequence[Cell]) -> str:
    """Size and accuracy on test by attention and task, the papers' rows below; and what one must know.

    Raises UserError if the runs do not belong into one table: of two presets, or of a task with other
    flags or data.
    """
    preset, tasks = check_alike(cells)
    names = [name for name in ATTENTIONS if any(cell["attention"] == name for cell in cells)]
    names += sorted({cell["attention"] for cell in cells} - set(names))
    header = ["", "layers × width", *(TITLES[task] + ("*" if reduced(cells, task) else "") for task in tasks)]
    columns = [{name: accuracies(cells, name, task) for name in names} for task in tasks]
    of_papers = list(tasks)
    if _has_average(tasks):
        header.append("average of five")
        columns.append({name: averages(cells, name) for name in names})
        of_papers.append("avg")
    rows = [
        [f"{label(name)}, here", our_size(cells, name), *(_figure(column, name) for column in columns)]
        for name in names
    ]
    rows += [
        [title, paper_size(row), *(row.get(x, "–") for x in of_papers)] for title, row in paper_rows(preset)
    ]
    return markdown_table(header, rows) + "\n\n" + "\n".join(notes(cells, preset, tasks))


def _has_average(tasks: Sequence[str]) -> bool:
    return set(FIVE) <= set(tasks)


def label(name: str) -> str:
    """What a reader sees of an attention."""
    return ATTENTIONS[name].label if name in ATTENTIONS else name


def check_alike(cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """The preset and the tasks of runs that may share a table; UserError if they may not."""
    presets = sorted({cell["preset"] for cell in cells})
    if len(presets) > 1:
        raise UserError(f"runs of {' and '.join(presets)} cannot share a table; give each its own --out")
    tasks = [task for task in TITLES if any(cell["task"] == task for cell in cells)]
    for task in tasks:
        settings = [(c["flags"], c["steps"], c["data"]) for c in cells if c["task"] == task]
        if any(other != settings[0] for other in settings):
            raise UserError(
                f"runs on {task} differ in flags, updates or data and cannot share a table; "
                "give each setting its own --out"
            )
    return presets[0], tasks


def accuracies(cells: Sequence[Cell], attention: str, task: str) -> dict[int, float]:
    """Accuracy in percent, by seed."""
    found = [cell for cell in cells if (cell["attention"], cell["task"]) == (attention, task)]
    return {cell["seed"]: cell["accuracy"] for cell in found}


def averages(cells: Sequence[Cell], attention: str) -> dict[int, float]:
    """Mean accuracy over the five tasks in percent, by seed; only of seeds that have all five."""
    by_task = [accuracies(cells, attention, task) for task in FIVE]
    whole = set.intersection(*(set(figures) for figures in by_task))
    return {seed: statistics.fmean(figures[seed] for figures in by_task) for seed in sorted(whole)}


def means_over_tasks(cells: Sequence[Cell]) -> tuple[list[str], dict[str, float]]:
    """Those of the five tasks that `cells` has, and its known attentions' mean accuracy over them.

    Leaves out attentions that lack one of them. Raises UserError if all do, or the runs cannot share a table.
    """
    tasks = [task for task in check_alike(cells)[1] if task in FIVE]
    figures = {name: [accuracies(cells, name, task) for task in tasks] for name in ATTENTIONS}
    means = {
        name: statistics.fmean(statistics.fmean(by_seed.values()) for by_seed in by_task)
        for name, by_task in figures.items()
        if by_task and all(by_task)
    }
    if not means:
        raise UserError("no attention was run on all tasks of the sweep; run what is missing first")
    return tasks, means


def _figure(column: dict[str, dict[int, float]], name: str) -> str:
    """Mean and range over the seeds; how many they are where others of the column have more."""
    values, most = list(column[name].values()), max(map(len, column.values()))
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.2f}"
    if len(values) > 1:
        text += f" ({min(values):.2f} to {max(values):.2f})"
    return text if len(values) == most else f"{text} [{len(values)} of {most} seeds]"


def reduced(cells: Sequence[Cell], task: str) -> bool:
    """Whether the runs on `task` are smaller than, or otherwise not those of, the preset."""
    cell = next(cell for cell in cells if cell["task"] == task)
    return bool(cell["flags"]) or not cell["published_sizes"]


def notes(cells: Sequence[Cell], preset: str, tasks: Sequence[str]) -> list[str]:
    """What decides the figures: preset, seeds, and for each task its data and updates."""
    lines = [
        f"Accuracy on test in percent, preset {preset}; {over_seeds(cells, 'mean')}. "
        f"A dash: not run{', or an average without all five tasks' if _has_average(tasks) else ''}.",
        *(f"- {TITLES[task]}: {_setting(cells, task)}" for task in tasks),
    ]
    if starred := [TITLES[task] for task in tasks if reduced(cells, task)]:
        lines.append(f"* {', '.join(starred)}: not the papers' setting, so no comparison with their figures.")
    lines += [f"Papers: {sentence}" for sentence in _differences(cells, preset)]
    ours = [cell for cell in cells if cell["attention"] == "performer"]
    paper = any("--performer-paper" in cell["flags"] for cell in ours)
    lines += performer_note((cell["attention"] for cell in cells), paper)
    machines = sorted({f"{where(c['environment'])}, {c['environment']['date']}" for c in cells})
    commits = ", ".join(sorted({cell["environment"]["commit"] for cell in cells}))
    return [*lines, f"Measured on {'; '.join(machines)} (commit {commits})."]


def _setting(cells: Sequence[Cell], task: str) -> str:
    cell = next(cell for cell in cells if cell["task"] == task)
    data = cell["data"]
    sizes = " / ".join(f"{n:,} {split}" for split, n in data["examples"].items())
    seed = "" if data.get("seed") is None else f", data seed {data['seed']}"
    steps = f"{cell['steps']:,} updates" if cell["steps"] else "epochs as in the YAML"
    flags = f", {' '.join(cell['flags'])}" if cell["flags"] else ""
    chosen = "best on valid" if cell["chosen_on_valid"] else "the last checkpoint"
    return f"{data['origin']} data ({sizes}{seed}), {steps}{flags}; {chosen}."


def _differences(cells: Sequence[Cell], preset: str) -> list[str]:
    if preset == STATE_SPACE:
        return [
            "the rows of LS, cosFormer and FLASH have other sizes, chosen for each task (cosFormer up to "
            "6 × 512, FLASH to 12 × 512), so this is no comparison at equal size.",
            "the authors' code keeps the highest test accuracy of any epoch; here valid decides.",
        ]
    listops = [cell for cell in cells if cell["task"] == "listops"]
    found = [
        "the rows of Table 6 have 2 layers of width 64, as ours; LLN's Table 5 does not say its sizes.",
        "black pixels are padding and the mean is over the padded length; here neither, unless flags say so.",
    ]
    if any(cell["data"].get("close_brackets", True) for cell in listops):
        found.append("ListOps has no `]` in Skyformer's data, so expressions cannot be parsed; here it has.")
    return found
