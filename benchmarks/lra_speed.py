#!/usr/bin/env python3
"""Speed and memory on Long Range Arena's Text by sequence length (TransNormer, Table 7).

Inference and training of the same classifier with each attention. With --lengths exact every row has the
length named; with --lengths review rows are reviews cut there, and a batch is as long as its longest, as in
TransNormer's paper. Each case runs in its own process; running out of memory becomes a dash. Results are
saved after every case: run the same command again to resume.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/lra_speed.py")

import torch

from benchmarks.models import TINY, LRAClassifier, Size
from benchmarks.run import CostBenchmark, training_cases
from benchmarks.worker import measure_steps
from conventions.plans import PLAN_WORDS
from lab.console import Parser, count, run_command
from lab.data.lra.tasks import STATE_SPACE
from lab.data.prepared import identify
from lab.errors import UserError
from lab.methods import ATTENTION_PANELS, ATTENTIONS, drawn, performer_note
from lab.papers import read_table
from lab.publish.costs import (
    NOT_MEASURED,
    Cell,
    Results,
    Value,
    curves,
    length_rows,
    measured_on,
)
from lab.publish.plots import plot_curves
from lab.publish.tables import markdown_table

# The vocabulary of all reviews in the authors' pipeline: 132 characters and fairseq's four.
BASE = Size(layers=6, width=128, heads=8, vocabulary=136)
LENGTHS = [1000, 2000, 3000, 4000, 5000]
QUICK_LENGTHS = [128, 256]  # no shorter than the landmarks of some methods
# Batch and steps by device.
FULL = {"cuda": {"batch": 20, "steps": 200}, "cpu": {"batch": 1, "steps": 3}}
QUICK = {"batch": 2, "steps": 1}
PRESET = "lra_state_space"
# Qin et al. 2022, Table 7, as the authors' code was then: TransNormer with a gated network of int(4/3 D), the
# others with one of 2 D; block size 32; and each method's own settings.
BLOCKS = {"diag_block_size": 32, "lln_diag_block_size": 32}
OWN = {
    "performer": {"performer_features": 32},
    "cosformer": {"encoder_attention_heads": 2},
    "transformer_ls": {"transformer_ls_window": 8, "transformer_ls_rank": 32},
}
KINDS = ("inference", "training")
DASH = "–"


class TextClassifier(LRAClassifier):
    """The classifier of Text in the preset `lra_state_space`.

    Args: as for `LanguageModel`, `architecture` the name of an attention; and
        reviews: a folder of data-prep/lra.sh whose training rows make the batches, cut to the length asked
            for and padded to the longest of a batch; without it rows are random and have that length.
    """

    pipeline = STATE_SPACE

    def __init__(
        self, architecture: str, size: Size, length: int, positions: int, device: str, reviews: Path | None
    ) -> None:
        self.reviews = reviews
        super().__init__(architecture, size, length, positions, device, "text")
        if reviews is not None:
            self.task.load_dataset("train")
            self.order = torch.randperm(len(self.task.dataset("train"))).tolist()

    def data_folder(self, folder: Path, size: Size, length: int) -> Path:
        """See `LanguageModel.data_folder`."""
        return self.reviews or super().data_folder(folder, size, length)

    def settings(self, architecture: str, size: Size, length: int, positions: int) -> dict[str, Any]:
        """See `LanguageModel.settings`."""
        return {
            **super().settings(architecture, size, length, positions),
            "arch": PRESET,
            "encoder_ffn_embed_dim": 2 * size.width,
            "encoder_ffn": "glu" if architecture in PLAN_WORDS else "ffn",
            **BLOCKS,
            **OWN.get(architecture, {}),
        }

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """A batch as the task makes it, on the device."""
        if self.reviews is None:
            return super().sample(rows, length)
        dataset = self.task.dataset("train")
        chosen, self.order = self.order[:rows], self.order[rows:] + self.order[:rows]
        samples = [dataset[index] for index in chosen]
        batch = dataset.collater([{**sample, "rows": [sample["rows"][0][:length]]} for sample in samples])
        inputs = {name: values.to(self.device) for name, values in batch["net_input"].items()}
        return {**batch, "net_input": inputs, "target": batch["target"].to(self.device)}

    @torch.no_grad()
    def infer(self, sample: dict[str, Any]) -> None:
        """The forward pass without gradients, in evaluation mode."""
        self.model.eval()
        self.model(**sample["net_input"])


ASKS = "How do the speed of a classifier and the memory of its training change with the length?"


def measure(step: Callable[[TextClassifier, dict[str, Any]], None], case: dict[str, Any]) -> dict[str, Any]:
    """Times, tokens and memory of `step`; the case names the folder of "reviews", or None."""
    reviews = case["reviews"] and Path(case["reviews"])
    return measure_steps(case, partial(TextClassifier, reviews=reviews), step)


MEASURES = {
    "inference": partial(measure, TextClassifier.infer),
    "training": partial(measure, TextClassifier.train_step),
}


def steps_per_second(found: Cell) -> float:
    """1 / the median time of a step."""
    return 1 / found.median


def tokens_per_second(found: Cell) -> float:
    """Real tokens, padding not counted: the median over the steps."""
    [record] = found.records
    pairs = zip(record["step_tokens"], record["step_seconds"], strict=True)
    return statistics.median(tokens / seconds for tokens, seconds in pairs)


def whole_peak(found: Cell) -> float:
    """Peak memory with all that was in use before: of the process, on a GPU of torch's allocator, in MiB."""
    return found.records[0]["whole_peak_bytes"] / 2**20


def table(results: Results, title: str, kind: str, value: Value, form: str, paper: str = "") -> str:
    """A row an attention, a column a length; with `paper`, "infer" or "train", TransNormer's rows below."""
    limit, lengths = results["settings"]["time_limit"], results["settings"]["lengths"]
    words = {NOT_MEASURED: NOT_MEASURED, "out of memory": DASH, "time limit": f"over {limit:g} s"}
    measured = length_rows(results, ATTENTIONS, lambda c: form.format(value(c)), kind=kind, words=words)
    rows = [[f"{label}, here", *figures] for label, *figures in measured]
    for row in read_table("transnormer_07_lra_speed") if paper else ():
        figures = [row.get(f"{paper}_{n // 1000}k", "-") for n in lengths]
        rows.append([f"{row['model']} (TransNormer)", *(f.replace("-", DASH) for f in figures)])
    return f"{title}\n\n" + markdown_table(["", *(f"{n:,}" for n in lengths)], rows)


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
        "mode; training: forward, backward and Adam. Each case ran in its own process; medians of "
        f"{_steps(results)}. {measured_on(results)}"
    )


def _steps(results: Results) -> str:
    """How many steps were timed, and in how many cases fewer, because time ran out."""
    wanted, done = results["settings"]["steps"], [x for x in results["records"] if x["status"] == "ok"]
    fewer = sum(len(record["step_seconds"]) < wanted for record in done)
    exceptions = f", in {fewer} of {len(done)} cases of fewer, which took long" if fewer else ""
    return f"{wanted} steps{exceptions}"


def differences(results: Results) -> str:
    """Differences from the paper's setting, and the words in the tables."""
    return (
        "The paper's rows are of another machine: compare how columns grow and how rows relate. TransNormer, "
        "Table 7: steps per second at batch 20 on one A6000; its columns are where reviews are cut, and by "
        "the authors' code a batch is only as long as its longest review, 3,730 characters on average at "
        "5,000. "
        f'"{DASH}": out of memory; "over {results["settings"]["time_limit"]:g} s": the process was ended.'
    )


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [
        caption(results),
        table(results, "Steps per second, inference:", "inference", steps_per_second, "{:.2f}", "infer"),
        table(results, "Steps per second, training:", "training", steps_per_second, "{:.2f}", "train"),
        table(results, "Tokens per second, inference:", "inference", tokens_per_second, "{:,.0f}"),
        table(results, "Tokens per second, training:", "training", tokens_per_second, "{:,.0f}"),
        table(results, "Peak memory of inference, MiB:", "inference", lambda c: c.peak, "{:,.0f}"),
        table(results, "Peak memory of a training step, MiB:", "training", lambda c: c.peak, "{:,.0f}"),
        table(results, "The same of the whole process, MiB:", "training", whole_peak, "{:,.0f}"),
        differences(results),
        *performer_note(results["settings"]["architectures"]),
    ]
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    """Steps per second and peak memory in one PNG, log axes."""
    names = drawn(results["settings"]["architectures"], ATTENTION_PANELS)
    length, unit, panels = "length, tokens", "steps per second", []
    for kind in KINDS:
        speed = curves(results, ATTENTIONS, names, steps_per_second, kind)
        panels.append((kind.capitalize(), length, unit, speed))
    panels.append(("Memory of training", length, "MiB", curves(results, ATTENTIONS, names, lambda c: c.peak)))
    plot_curves(path, panels, asks=ASKS, columns=3, note=caption(results))


def add_options(parser: Parser) -> None:
    """The options for the rows and the number of timed steps."""
    parser.add_argument(
        "--lengths", choices=("exact", "review"), default="exact", help="see above (default: %(default)s)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="for --lengths review: made by data-prep/lra.sh text --pipeline state-space",
    )
    parser.add_argument("--steps", type=count, metavar="N", help="timed steps (default: GPU 200, CPU 3)")


def complaint(arguments: argparse.Namespace) -> str:
    """The error for reviews without data or data without reviews, or nothing."""
    fits = (arguments.lengths == "review") == (arguments.data is not None)
    return "" if fits else "--lengths review needs --data, and only it does"


def settings_for(
    device: str, quick: bool, lengths: str, data: Path | None = None, **chosen: Any
) -> dict[str, Any]:
    """The settings, with `chosen` in place of the plan's. UserError for unusable data."""
    size, plan = (TINY, QUICK) if quick else (BASE, FULL[device])
    described = None
    if data:
        from lab.run.kinds import KINDS as KINDS_OF_DATA  # loads fairseq, which only --data needs here

        reviews = KINDS_OF_DATA["lra"].open_data(data.absolute(), ("train",))
        if reviews.task != "text":
            raise UserError(f"{data} holds {reviews.task}; the benchmark reads text")
        described = identify(reviews.folder)
        size = replace(size, vocabulary=reviews.manifest["vocabulary"])
    return {
        "size": size.as_dict(),
        "mode": lengths,
        "data": described,
        "lengths": QUICK_LENGTHS if quick else LENGTHS,
        "rounds": 1,
        **plan,
        "keep_frees": True,
        **chosen,
    }


def question(arguments: argparse.Namespace, settings: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """The tokens of a batch, and where its reviews lie, if it has some."""
    reviews = arguments.data and str(arguments.data.absolute())
    return {"tokens": case["length"] * settings["batch"], "reviews": reviews}


BENCHMARK = CostBenchmark(
    __file__,
    __doc__,
    ATTENTIONS,
    60,
    settings_for,
    markdown,
    plot,
    add_options=add_options,
    complaint=complaint,
    chooses=("time_limit", "lengths", "data", "steps"),
    cases=lambda settings: [case for kind in KINDS for case in training_cases(settings, kind)],
    question=question,
    variant=lambda arguments: "_review" if arguments.data else "",
)
main = BENCHMARK.main

if __name__ == "__main__":
    run_command(main)
