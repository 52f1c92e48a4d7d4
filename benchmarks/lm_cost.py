#!/usr/bin/env python3
"""Cost of the language models: time and memory of training, time per decoded token.

Training is measured at several lengths with a constant number of tokens per batch, decoding at several
positions. Every architecture and length runs in its own processes, which take turns, so that a slow minute of
the machine affects all of them. A decoded token is timed in short visits, of which the fastest counts: other
work on the same core, in a virtual machine also of other tenants, may double the time of the others. Running
out of memory or time becomes a row of the table. Results are saved after every case: run the same command
again to resume. On two cores the default takes about 16 minutes; the machine should do nothing else.
"""

import argparse
import statistics
import time
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/lm_cost.py")

import torch

from benchmarks.measuring import timed
from benchmarks.models import SMALL, TINY, LanguageModel, Size, copy_state, fill_state
from benchmarks.run import CostBenchmark, training_cases
from benchmarks.worker import measure_steps
from lab.console import Parser, count, run_command
from lab.methods import (
    LANGUAGE_MODEL_PANELS,
    LANGUAGE_MODELS,
    MAIN_LANGUAGE_MODELS,
    TRANSNORMERS,
    drawn,
    label_of,
    performer_note,
)
from lab.publish.costs import (
    Cell,
    Goal,
    Results,
    cell,
    curves,
    goal_table,
    length_table,
    measured_on,
    precision,
    ratio,
)
from lab.publish.plots import plot_curves
from lab.publish.tables import spread

BASE = Size(layers=6, width=512, heads=8, vocabulary=4000)
ASKS = "How do time and memory of a language model grow with the length of its text?"
FULL = {
    "tokens": 16384,
    "lengths": [512, 1024, 2048, 4096, 8192, 16384],
    "positions": [10, 1000, 10_000, 100_000],
    "rounds": 2,
    "steps": 3,
    "decoding_rounds": 4,
    "visit_steps": 64,
    "visits": 12,
}
QUICK = {
    "tokens": 256,
    "lengths": [64, 256],
    "positions": [10, 100],
    "rounds": 1,
    "steps": 1,
    "decoding_rounds": 1,
    "visit_steps": 4,
    "visits": 1,
}
NEAR, FAR, MOST_TRAINING = 1024, 16384, 1.2
EARLY, LATE, MOST_DECODING = 10, 100_000, 1.1


@torch.no_grad()
def measure_decoding(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a decoding step by position, one sentence, positions taking turns.

    A visit to position P times the tokens P, P+1, … , always from the same state: "visit_seconds" has the
    median of each visit, "token_seconds" the median of all steps. Positions whose context takes too long to
    read are skipped.
    """
    device, positions, steps = case["device"], sorted(case["positions"]), case["visit_steps"]
    longest = positions[-1] + steps
    size = Size(**case["size"])
    lm = LanguageModel(case["architecture"], size, longest, longest, device)
    lm.model.eval()
    tokens = lm.tokens(1, longest)
    states, state, before = {}, {}, 0
    deadline = time.monotonic() + 2 * case["enough_s"]
    for position in positions:
        if not fill_state(lm.model, tokens, state, before, position, deadline):
            break
        states[position], before = copy_state(state), position
    visits: dict[str, list[list[float]]] = {str(p): [] for p in states}
    begin = time.monotonic()
    for visit in range(case["visits"] + 1):
        for position in states:
            state, seconds = copy_state(states[position]), []
            for at in range(position, position + steps):
                step = partial(lm.model.decoder, tokens[:, : at + 1], incremental_state=state)
                seconds.append(timed(step, device))
            if visit:  # the first visit warms up
                visits[str(position)].append(seconds)
        if visit and time.monotonic() - begin > case["enough_s"]:
            break
    return {
        "parameters": lm.parameters,
        "token_seconds": {at: statistics.median(chain(*seconds)) for at, seconds in visits.items()},
        "visit_seconds": {at: [statistics.median(one) for one in seconds] for at, seconds in visits.items()},
    }


MEASURES = {"training": measure_steps, "decoding": measure_decoding}


def training_tables(results: Results) -> str:
    """Step time, tokens per second and peak memory against length, in Markdown."""
    tokens = results["settings"]["tokens"]
    memory = "Peak memory of a training step above model, optimizer and libraries, KiB per token, by length:"
    tables = {
        "Seconds per training step, median (range), by length:": lambda c: spread(c.seconds),
        "Tokens per second in training, by length:": lambda c: f"{tokens / c.median:,.0f}",
        memory: lambda c: f"{1024 * c.peak / tokens:.1f}",
    }
    return "\n\n".join(length_table(results, title, LANGUAGE_MODELS, show) for title, show in tables.items())


def undisturbed(decoded: Cell) -> float:
    """Seconds per decoded token in the fastest visit of all processes.

    A neighbour on the same core only ever adds time, for milliseconds or for the life of a process.
    """
    return min(min(record["visit_seconds"][str(decoded.at)]) for record in decoded.records)


def decoding_table(results: Results) -> str:
    """Time per decoded token against position, in Markdown."""
    settings = results["settings"]
    thread = ", one thread" if settings["device"] == "cpu" else ""
    title = (
        f"Milliseconds per decoded token (batch 1{thread}) in the fastest visit of "
        f"{settings['visit_steps']} steps (median process, all its steps), by position (–: reading the "
        "context would take too long):"
    )

    def show(c: Cell) -> str:
        return f"{1000 * undisturbed(c):.2f} ({1000 * c.median:.2f})"

    return length_table(results, title, LANGUAGE_MODELS, show, kind="decoding", places=settings["positions"])


def caption(results: Results) -> str:
    """One paragraph: model size, batch, machine, versions, day."""
    settings = results["settings"]
    decoding = " in training, float32 in decoding" if settings.get("bf16") else ""
    turns = "in turns, decoding on one thread" if settings["device"] == "cpu" else "in turns"
    return (
        f"{Size(**settings['size'])}; {precision(results)}{decoding}, embeddings tied, dropout 0.1; "
        f"{settings['tokens']:,} random tokens per batch whatever the length; forward, backward and "
        f"Adam; each architecture and length ran in its own processes, {turns}. "
        f"{measured_on(results)}"
    )


def goals(results: Results) -> list[Goal]:
    """Whether T1 and T2 cost the same per token at any length, in training and in decoding."""
    found = []
    for name in TRANSNORMERS:
        label = label_of(name)
        near, far = (cell(results, "training", name, at) for at in (NEAR, FAR))
        for what, value in (("time", lambda c: c.median), ("peak memory", lambda c: c.peak)):
            figure = f"{label}, training {what} per token at {FAR:,} over that at {NEAR:,}"
            found.append(Goal(figure, ratio(far, near, value), MOST_TRAINING))
        near, far = (cell(results, "decoding", name, at) for at in (EARLY, LATE))
        figure = f"{label}, time per decoded token at {LATE:,} over that at {EARLY:,}"
        found.append(Goal(figure, ratio(far, near, undisturbed), MOST_DECODING))
    return found


def markdown(results: Results) -> str:
    """The whole report."""
    judged = goal_table([goal.row() for goal in goals(results)])
    parts = [caption(results), training_tables(results), decoding_table(results), judged]
    parts += performer_note(results["settings"]["architectures"])
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    """Training time, peak memory and decoding time per token in one PNG, log axes."""
    settings = results["settings"]
    tokens, positions = settings["tokens"], settings["positions"]
    length, position = "length of a sequence, tokens", "position, tokens"
    names = drawn(settings["architectures"], LANGUAGE_MODEL_PANELS)
    time = curves(results, LANGUAGE_MODELS, names, lambda c: 1e6 * c.median / tokens)
    memory = curves(results, LANGUAGE_MODELS, names, lambda c: 1024 * c.peak / tokens)
    decoding = curves(results, LANGUAGE_MODELS, names, lambda c: 1e3 * undisturbed(c), "decoding", positions)
    panels = [
        ("Training: time per token", length, "microseconds", time),
        ("Training: peak memory per token", length, "KiB", memory),
        ("Decoding: time per token", position, "milliseconds", decoding),
    ]
    plot_curves(path, panels, asks=ASKS, columns=3, note=caption(results))


def add_options(parser: Parser) -> None:
    """What and how often is measured."""
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=count,
        metavar="N",
        help="lengths that divide the number of tokens per batch; default: all",
    )
    parser.add_argument("--rounds", type=count, help="number of times training is measured at each length")
    parser.add_argument("--bf16", action="store_true", help="train as fairseq-train --bf16 does")


def complaint(arguments: argparse.Namespace) -> str:
    """The error for lengths that do not fill a batch, or nothing."""
    tokens = (QUICK if arguments.quick else FULL)["tokens"]
    if all(tokens % length == 0 for length in arguments.lengths or ()):
        return ""
    return f"--lengths is {' '.join(map(str, arguments.lengths))}; expected divisors of {tokens}"


def settings_for(device: str, quick: bool, **chosen: Any) -> dict[str, Any]:
    """The settings of a measurement, with `chosen` in place of the plan's."""
    size = TINY if quick else BASE if device == "cuda" else SMALL
    return {"size": size.as_dict(), **(QUICK if quick else FULL), **chosen}


def cases_of(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All processes to run."""
    decoding = [
        {"kind": "decoding", "architecture": name, "round": turn}
        for turn in range(settings["decoding_rounds"])
        for name in settings["architectures"]
    ]
    return decoding + training_cases(settings)


BENCHMARK = CostBenchmark(
    __file__,
    __doc__,
    LANGUAGE_MODELS,
    150,
    settings_for,
    markdown,
    plot,
    default=MAIN_LANGUAGE_MODELS,
    add_options=add_options,
    complaint=complaint,
    chooses=("lengths", "rounds", "bf16"),
    cases=cases_of,
)
main = BENCHMARK.main

if __name__ == "__main__":
    run_command(main)
