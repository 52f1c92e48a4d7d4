#!/usr/bin/env python3
"""Cost of the RoBERTa encoders: time and memory of a training step by sequence length (LLN, Table 2).

Masked language modelling with one sequence per batch. Every architecture and length runs in its own
processes, which take turns, so that a slow minute of the machine affects all of them. Running out of memory
or time becomes a row of the table. Results are saved after every case: run the same command again to resume.
On a GPU the encoders have RoBERTa's base size, on a CPU a smaller one; there the default takes up to fifteen
minutes on two cores, and the machine should do nothing else.
"""

from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/roberta_cost.py")

import torch

from benchmarks.models import TINY, LanguageModel, Size, model_config
from benchmarks.run import CostBenchmark
from benchmarks.worker import measure_steps
from lab.console import Parser, count, run_command
from lab.methods import ENCODER_PANELS, ENCODERS, MAIN_ENCODERS, SOFTMAX, drawn, performer_note
from lab.papers import read_table
from lab.publish.costs import (
    Cell,
    Goal,
    Results,
    Value,
    curves,
    length_rows,
    measured,
    measured_on,
    precision,
)
from lab.publish.plots import plot_curves
from lab.publish.tables import markdown_table, spread

METHODS = {encoder.encoder_architecture: encoder for encoder in ENCODERS.values()}
"""By fairseq's name."""
DEFAULT = [ENCODERS[name].encoder_architecture for name in MAIN_ENCODERS]
BASE = Size(layers=12, width=768, heads=12, vocabulary=50_265)
SMALLER = Size(layers=2, width=256, heads=4, vocabulary=1000)
FULL = {"lengths": [512, 1024, 2048, 4096, 8192, 16384], "rounds": 2, "steps": 3}
QUICK = {"lengths": [64, 128], "rounds": 1, "steps": 1}
MASKED_PART = 0.15
LONG, MOST_PER_DOUBLING = 4096, 2.2
OUT_OF_MEMORY = "OOM"
ASKS = "How do time and memory of a training step of RoBERTa grow with the length?"


def encoder_settings(architecture: str, size: Size) -> dict[str, Any]:
    """The settings with which fairseq builds `architecture` at `size`.

    Where an architecture differs from RoBERTa's base size (FLASH has twice the layers, one head, …), the
    ratio is kept; at `BASE` all are the architecture's own defaults.
    """
    own = model_config(architecture)
    settings = {
        "encoder_layers": own.encoder_layers * size.layers // BASE.layers,
        "encoder_embed_dim": size.width,
        "encoder_attention_heads": size.heads if own.encoder_attention_heads == BASE.heads else 1,
        "encoder_ffn_embed_dim": own.encoder_ffn_embed_dim * size.width // BASE.width,
    }
    if own.glu_dim:
        settings["glu_dim"] = own.glu_dim * size.width // BASE.width
    return settings


class MaskedLanguageModel(LanguageModel):
    """An encoder with its task, loss and optimizer, built from the flags a user would type.

    Args: as for `LanguageModel`.
    """

    added_symbols = 1  # the mask

    def settings(self, architecture: str, size: Size, length: int, positions: int) -> dict[str, Any]:
        """See `LanguageModel.settings`."""
        return {
            "task": "masked_lm",
            "criterion": "masked_lm",
            "tokens_per_sample": length,
            "max_positions": positions,
            "arch": architecture,
            **encoder_settings(architecture, size),
        }

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """A training batch as fairseq's masked language modelling dataset makes it."""
        words = self.tokens(rows, length)
        masked = torch.rand(rows, length, device=self.device).argsort() < max(1, int(MASKED_PART * length))
        pad, mask = self.task.source_dictionary.pad(), self.task.mask_idx
        return {
            "id": torch.arange(rows),
            "nsentences": rows,
            "ntokens": rows * length,
            "net_input": {
                "src_tokens": words.masked_fill(masked, mask),
                "src_lengths": torch.full((rows,), length, device=self.device),
            },
            "target": words.masked_fill(~masked, pad),
        }


MEASURES = {"training": partial(measure_steps, build=MaskedLanguageModel)}


def paper_table(metric: str) -> str:
    """The paper's rows of `metric`, "sec_per_it" or "memory_gb"."""
    lines = [line for line in read_table("lln_02_roberta_cost") if line["metric"] == metric]
    lengths = [key for key in lines[0] if key.isdigit()]
    rows = [[line["method"], *(line[n] for n in lengths)] for line in lines]
    return markdown_table(["paper, Table 2", *(f"{int(n):,}" for n in lengths)], rows)


def caption(results: Results) -> str:
    """One paragraph: model, batch, machine, versions, day."""
    size = Size(**results["settings"]["size"])
    return (
        f"RoBERTa encoder of {size}; {precision(results)}, dropout 0.1 (also of attention weights, "
        f"where there are any); one row of random tokens per batch, {MASKED_PART:.0%} of them masked; "
        "forward, backward and Adam; each architecture and length ran in its own processes, in turns; "
        "timed with freed memory kept by the process. "
        f"{measured_on(results)}"
    )


def differences(results: Results) -> str:
    """Differences from the paper's setting, and the words in the tables."""
    limit = results["settings"]["time_limit"]
    return (
        "The paper (Nahshan et al. 2024, Table 2) trains RoBERTa-base at batch 1 on a GPU and gives the "
        "GPU's whole memory in GB; memory here is what a step needs at its peak above parameters, optimizer "
        "state (together 12 bytes a parameter) and libraries. Compare how columns grow and how rows relate, "
        f'not single figures, where size or device differ. "{OUT_OF_MEMORY}": memory ran out; "over '
        f'{limit:g} s": the process that should have built the model, warmed up and timed a step was ended.'
    )


def tables(results: Results) -> str:
    """Time and memory against length, measured and as the paper has them, in Markdown."""
    words = {"out of memory": OUT_OF_MEMORY, "time limit": f"over {results['settings']['time_limit']:g} s"}
    time = "Seconds per training step, median (range), by length:"
    memory = "Peak memory of a training step, MiB here and GB in the paper, by length:"
    header, parts = ["measured here", *(f"{n:,}" for n in results["settings"]["lengths"])], []
    for title, metric, show in (
        (time, "sec_per_it", lambda c: spread(c.seconds, "{:.3g}")),
        (memory, "memory_gb", lambda c: f"{c.peak:,.0f}"),
    ):
        rows = length_rows(results, METHODS, show, words=words)
        parts.append(f"{title}\n\n{markdown_table(header, rows)}")
        parts.append(paper_table(metric))
    return "\n\n".join(parts)


def goals(results: Results) -> dict[str, list[Goal]]:
    """Whether linear encoders cost less than softmax on long sequences, and in proportion to the length."""
    return {
        name: [
            _against_softmax(results, name, "time", lambda c: c.median),
            _against_softmax(results, name, "peak memory", lambda c: c.peak),
            _per_doubling(results, name),
        ]
        for name in results["settings"]["architectures"]
        if not METHODS[name].quadratic
    }


def goals_by_encoder(results: Results) -> str:
    """Bounds on the cost of each encoder except the quadratic ones, and the measured costs, in Markdown."""
    found = goals(results)
    header = [goal.wanted for goal in next(iter(found.values()), [])]
    rows = [[METHODS[name].label, *(_judged(goal) for goal in row)] for name, row in found.items()]
    return markdown_table(["", *header], rows)


def _judged(goal: Goal) -> str:
    if goal.value is None:
        return goal.outcome
    return f"{goal.value:.2f}" if goal.outcome == "met" else f"{goal.value:.2f}, {goal.outcome}"


def _against_softmax(results: Results, name: str, what: str, value: Value) -> Goal:
    ours, theirs = (measured(results, x) for x in (name, ENCODERS[SOFTMAX].encoder_architecture))
    ratios = [value(ours[n]) / value(theirs[n]) for n in ours if n >= LONG and n in theirs]
    return Goal(f"largest {what} over softmax's, from {LONG:,} on", max(ratios, default=None), 1.0)


def _per_doubling(results: Results, name: str) -> Goal:
    cells: dict[int, Cell] = measured(results, name)
    ratios = [cells[b].median / cells[a].median for a, b in pairwise(cells) if b == 2 * a]
    return Goal(
        "largest growth of time when the length doubles", max(ratios, default=None), MOST_PER_DOUBLING
    )


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [caption(results), tables(results), differences(results), goals_by_encoder(results)]
    parts += performer_note(results["settings"]["architectures"])
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    """Time and peak memory of a training step in one PNG, log axes."""
    length = "length of the sequence, tokens"
    known = {
        title: [ENCODERS[name].encoder_architecture for name in names]
        for title, names in ENCODER_PANELS.items()
    }
    names = drawn(results["settings"]["architectures"], known)
    panels = [
        ("Time of a training step", length, "seconds", curves(results, METHODS, names, lambda c: c.median)),
        ("Peak memory of a training step", length, "MiB", curves(results, METHODS, names, lambda c: c.peak)),
    ]
    plot_curves(path, panels, asks=ASKS, columns=2, note=caption(results))


def add_options(parser: Parser) -> None:
    """What and how often is measured."""
    parser.add_argument("--lengths", nargs="+", type=count, metavar="N", help="default: all")
    parser.add_argument("--rounds", type=count, metavar="N", help="times each length is measured")
    parser.add_argument("--bf16", action="store_true", help="train as fairseq-train --bf16 does")


def settings_for(device: str, quick: bool, **chosen: Any) -> dict[str, Any]:
    """The settings of a measurement, with `chosen` in place of the plan's."""
    size = TINY if quick else BASE if device == "cuda" else SMALLER
    return {"size": size.as_dict(), "keep_frees": True, **(QUICK if quick else FULL), **chosen}


BENCHMARK = CostBenchmark(
    __file__,
    __doc__,
    METHODS,
    60,
    settings_for,
    markdown,
    plot,
    default=DEFAULT,
    add_options=add_options,
    chooses=("lengths", "rounds", "bf16", "time_limit"),
)
main = BENCHMARK.main

if __name__ == "__main__":
    run_command(main)
