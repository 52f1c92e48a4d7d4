#!/usr/bin/env python3
"""Time and memory of training on each task of Long Range Arena (LLN, Table 4).

The models of configs/lra_skyformer on random rows, each as long as the longest of its task; softmax
attention recomputes its activations, as in Skyformer's code. On a GPU the batches are the paper's, on a CPU
an eighth of them. Each case runs in its own process. Results are saved after every case: run the same
command again to resume.
"""

import argparse
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/lra_cost.py")

from benchmarks.models import LRA_TITLES, TINY, LRAClassifier, Size
from benchmarks.run import CostBenchmark
from benchmarks.worker import measure_steps
from conventions.plans import PLAN_WORDS
from lab.console import Parser, count, run_command
from lab.data.lra.tasks import SKYFORMER, TASKS
from lab.files import ROOT
from lab.methods import ATTENTIONS, performer_note
from lab.papers import read_table
from lab.publish.costs import Cell, Results, Value, cell, measured_on, ratio, shown
from lab.publish.tables import markdown_table
from lab.publish.tables import shown as or_dash
from lab.run.recipe import Experiment, compose_experiment

BASE = Size(layers=2, width=64, heads=2, vocabulary=512)  # of the largest table
PAPER_STEPS = 50_000
PAPER_ROWS = {
    "softmax": "Softmax",
    "reformer": "Reformer",
    "performer": "Performer",
    "skyformer": "Skyformer",
    "lln_diag": "LLN+Diag",
}
YARDSTICK = "lln_diag"
FULL = {"cuda": {"share": 1, "steps": 200}, "cpu": {"share": 8, "steps": 5}}
QUICK_LENGTH, QUICK_BATCH = 128, 2  # no shorter than the landmarks of some methods


@cache
def preset(task: str) -> Experiment:
    """The settings of a task."""
    return compose_experiment(ROOT / "configs" / "lra_skyformer" / f"{task}.yaml")


def padded(task: str) -> int:
    """Positions of the task's longest row, filled up to a power of two."""
    return 1 << (TASKS[task].length - 1).bit_length()


class TaskClassifier(LRAClassifier):
    """The classifier of a task in the preset `lra_skyformer`."""

    pipeline = SKYFORMER

    def data_folder(self, folder: Path, size: Size, length: int) -> Path:
        """See `LanguageModel.data_folder`."""
        symbols = preset(self.lra_task.name).get("model", "vocabulary_size")
        return super().data_folder(folder, replace(size, vocabulary=symbols), length)

    def settings(self, architecture: str, size: Size, length: int, positions: int) -> dict[str, Any]:
        """See `LanguageModel.settings`."""
        transnormer = {"encoder_ffn": "glu", "encoder_norm": "rmsnorm"}
        settings = {
            **(transnormer if architecture in PLAN_WORDS else {}),
            **preset(self.lra_task.name).settings["model"],
            **super().settings(architecture, size, length, positions),
            "checkpoint_activations": architecture == "softmax",
        }
        return {"arch": settings.pop("_name"), **settings}


MEASURES = {task: partial(measure_steps, build=partial(TaskClassifier, lra_task=task)) for task in LRA_TITLES}
"""By the task."""


def run_seconds(found: Cell) -> float:
    """Seconds of the paper's number of steps."""
    return PAPER_STEPS * found.median


def table(results: Results, title: str, column: str, value: Value) -> str:
    """A row an attention, a column a task, the paper's rows (`column` and the task's name) below."""
    limit, tasks = results["settings"]["time_limit"], results["settings"]["tasks"]
    words = {"time limit": f"over {limit:g} s"}
    rows = [
        [
            f"{ATTENTIONS[name].label}, here",
            *(shown(found(results, task, name), lambda c: f"{value(c):,.0f}", words) for task in tasks),
        ]
        for name in results["settings"]["architectures"]
    ]
    rows += [
        [f"{name} (LLN)", *(f"{theirs[task]:,.0f}" for task in tasks)]
        for name, theirs in published(column).items()
    ]
    return f"{title}\n\n" + markdown_table(["", *(LRA_TITLES[task] for task in tasks)], rows)


def ratio_table(results: Results, title: str, column: str, value: Value) -> str:
    """Each attention's figure over LLN+Diag's, here and in the paper."""
    tasks, paper = results["settings"]["tasks"], published(column)
    least = paper[PAPER_ROWS[YARDSTICK]]
    rows = []
    for name in results["settings"]["architectures"]:
        theirs, cells = paper.get(PAPER_ROWS.get(name, "")), []
        for task in tasks:
            ours = ratio(found(results, task, name), found(results, task, YARDSTICK), value)
            here = or_dash(ours, ".2f")
            cells.append(f"{here} ({theirs[task] / least[task]:.2f})" if theirs else here)
        rows.append([ATTENTIONS[name].label, *cells])
    return f"{title}\n\n" + markdown_table(["", *(LRA_TITLES[task] for task in tasks)], rows)


def found(results: Results, task: str, name: str) -> Cell | None:
    """The figures of an attention on a task."""
    return cell(results, task, name, results["settings"]["tasks"][task]["length"])


def published(column: str) -> dict[str, dict[str, float]]:
    """LLN's figures "time" or "mem" by row and task."""
    lines = read_table("lln_04_lra_cost")
    return {line["method"]: {task: float(line[f"{column}_{task}"]) for task in LRA_TITLES} for line in lines}


def caption(results: Results) -> str:
    """One paragraph: model, rows, machine, versions, day."""
    settings = results["settings"]
    tasks = settings["tasks"].items()
    rows = ", ".join(f"{LRA_TITLES[task]} {x['batch']} x {x['length']:,}" for task, x in tasks)
    size = Size(**settings["size"])
    return (
        f"Classifiers of {size.layers} layers of width {size.width}, {size.heads} heads, float32, on random "
        f"rows without padding: {rows} (Retrieval: pairs of rows). Forward, backward and Adam; softmax "
        "attention recomputes its activations. Each case ran in its own process; medians of up to "
        f"{settings['steps']} steps. {measured_on(results)}"
    )


def differences(results: Results) -> str:
    """How the paper's setting differs."""
    share = results["settings"]["share"]
    batch = f"batches {share} times as large, " if share > 1 else ""
    return (
        f"The paper (Nahshan et al. 2024, Table 4): {batch}a GPU, evidently Skyformer's code in fp16; "
        f"seconds of all {PAPER_STEPS:,} steps with the evaluations on valid, where ours are the median step "
        f"times {PAPER_STEPS:,}; memory is the allocator's peak over the run, ours that of a step above "
        "model and optimizer. Compare the ratios, not the figures."
    )


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [
        caption(results),
        ratio_table(results, "Time over that of LLN+Diag, here (in the paper):", "time", run_seconds),
        ratio_table(
            results, "Peak memory over that of LLN+Diag, here (in the paper):", "mem", lambda c: c.peak
        ),
        table(results, f"Seconds of {PAPER_STEPS:,} steps:", "time", run_seconds),
        table(results, "Peak memory, MiB:", "mem", lambda c: c.peak),
        differences(results),
        *performer_note(results["settings"]["architectures"]),
    ]
    return "\n\n".join(parts) + "\n"


def settings_for(device: str, quick: bool, **chosen: Any) -> dict[str, Any]:
    """The settings of a measurement, with `chosen` in place of the plan's."""
    plan = {"share": 1, "steps": 1} if quick else FULL[device]
    tasks = {
        task: {"length": QUICK_LENGTH, "batch": QUICK_BATCH}
        if quick
        else {"length": padded(task), "batch": preset(task).get("dataset", "batch_size") // plan["share"]}
        for task in LRA_TITLES
    }
    return {
        "size": (TINY if quick else BASE).as_dict(),
        "tasks": tasks,
        "rounds": 1,
        **plan,
        "keep_frees": True,
        **chosen,
    }


def cases(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All processes to run: on each task the attentions take turns."""
    return [
        {"kind": task, "architecture": name, "length": about["length"], "round": 0}
        for task, about in settings["tasks"].items()
        for name in settings["architectures"]
    ]


def question(arguments: argparse.Namespace, settings: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """The tokens of a batch."""
    return {"tokens": case["length"] * settings["tasks"][case["kind"]]["batch"]}


def add_options(parser: Parser) -> None:
    """How much is measured."""
    parser.add_argument("--steps", type=count, metavar="N", help="timed steps (default: GPU 200, CPU 5)")


BENCHMARK = CostBenchmark(
    __file__,
    __doc__,
    ATTENTIONS,
    120,
    settings_for,
    markdown,
    default=list(PAPER_ROWS),
    add_options=add_options,
    chooses=("time_limit", "steps"),
    cases=cases,
    question=question,
)
main = BENCHMARK.main

if __name__ == "__main__":
    run_command(main)
