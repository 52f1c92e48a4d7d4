"""Language models: their settings beside the paper's, and streams that are read with carried state."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from lab.methods import LANGUAGE_MODELS, label_of
from lab.papers import read_table
from lab.publish.plots import Curve, colors_of, level_line, plot_curves, tint
from lab.publish.tables import (
    Extras,
    RecordGroup,
    either,
    grouped,
    markdown_table,
    note_of_seed,
    of_first_seed,
    where,
)
from lab.run.recipe import given_settings
from lab.store import Record


def settings_tables(section: RecordGroup) -> list[str]:
    """A row for each setting: the paper's on the left, on the right all values that the records have."""
    config = {row["setting"]: row["alm"] for row in read_table("transnormer_13_config")}
    records = [{**record, "settings": given_settings(record)} for record in section.records]

    def same(value: Callable[[Record], Any]) -> str:
        return " or ".join(sorted({known(value, record) for record in records}))

    def setting(group: str, key: str) -> str:
        return same(lambda record: record["settings"][group][key])

    batch = int(config["total_batch"]) * int(config["sequence_length"])
    words = same(lambda record: record["data"]["splits"]["train"]["words"])
    size = ", ".join(setting("model", key) for key in ("decoder_layers", "decoder_embed_dim"))
    heads = setting("model", "decoder_attention_heads")
    peak = f"{float(config['peak_lr']):g}, {config['scheduler']}, {number(int(config['warmup']))}"
    clipped = f"{config['hidden_dropout']}, {clipping(config['clip_norm'])}"
    rows = [
        ("corpus", config["data"], same(lambda record: record["data"]["corpus"])),
        ("words of training text", "–", words),
        ("tokeniser", config["tokenizer"], same(lambda record: record["data"]["tokenizer"])),
        ("vocabulary", number(int(config["vocabulary"])), same(lambda record: record["data"]["vocabulary"])),
        (
            "layers, width, heads",
            f"{config['decoder_layers']}, {config['hidden']}, {config['heads']}",
            f"{size}, {heads}",
        ),
        (
            "tokens per sequence, tokens per update",
            f"{config['sequence_length']}, {number(batch)}",
            f"{setting('task', 'tokens_per_sample')}, "
            f"{same(lambda record: record['training']['tokens_per_update'])}",
        ),
        ("updates", number(int(config["updates"])), same(lambda record: record["training"]["updates"])),
        ("peak learning rate, schedule, warm-up updates", peak, schedules(records)),
        ("dropout, gradient norm clipped at", clipped, same(regularisation)),
    ]
    return [markdown_table(("setting", "paper, Table 13", "here"), rows)]


def known(value: Callable[[Record], Any], record: Record) -> str:
    """A value of a run as text; a dash if the record lacks it."""
    with suppress(KeyError, TypeError):  # data of fairseq-preprocess have no manifest
        return number(value(record))
    return "–"


def schedules(records: Sequence[Record]) -> str:
    """The runs' peak learning rates, then schedule and warm-up: "0.002 or 0.004, polynomial_decay, 100"."""
    found = []
    for name, group in grouped(records, partial(known, schedule)).items():
        rates = list(dict.fromkeys(known(peak_rate, record) for record in group))
        with suppress(ValueError):  # a dash is not a number
            rates.sort(key=float)
        found.append(f"{either(rates)}, {name}")
    return "; ".join(found)


def peak_rate(record: Record) -> str:
    """Peak learning rate of a run."""
    rate = record["settings"]["optimization"]["lr"]
    return f"{float(rate[0] if isinstance(rate, list) else rate):g}"


def schedule(record: Record) -> str:
    """Schedule and warm-up of a run."""
    settings = record["settings"]["lr_scheduler"]
    return f"{settings['_name']}, {number(settings['warmup_updates'])}"


def regularisation(record: Record) -> str:
    """Dropout and clipping of a run."""
    settings = record["settings"]
    return f"{settings['model']['dropout']:g}, {clipping(settings['optimization']['clip_norm'])}"


def clipping(norm: float | str) -> str:
    """The norm at which gradients are clipped, in words."""
    return f"{float(norm):g}" if float(norm) else "none"


def number(value: Any) -> str:
    """A number with commas; a text as it is."""
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


MIB = 2**20
READINGS = {"independent samples": "apart", "carried state": "carried"}
APART = 0.5
"""The share of white in the colours of models that were trained without carried state."""
ASKS = "Evaluated with carried state, which models are better: those trained with it or without it (pale)?"


def markdown(result: dict[str, Any]) -> str:
    """Caption, and a table with a row for each bucket of positions."""
    rows = [
        [
            f"{bucket['first']:,} to {end - 1:,}",
            f"{bucket['tokens']:,}",
            f"{bucket['loss_nats_per_token']:.4f}",
            f"{bucket['perplexity_per_token']:.2f}",
            f"{bucket['tokens_per_second']:,.0f}",
            f"{bucket['state_bytes'] / MIB:.3f}",
            f"{bucket['memory_bytes'] / MIB:,.0f}",
        ]
        for bucket, end in zip(result["buckets"], ends_of(result), strict=True)
    ]
    header = ["position", "tokens", "nats per token", "perplexity", "tokens/s", "state, MiB", "memory, MiB"]
    return f"{caption(result)}\n\n{markdown_table(header, rows)}\n"


def caption(result: dict[str, Any]) -> str:
    """A paragraph about the data and the checkpoints of the evaluation."""
    resets = ", reset at documents" if result["reset_at_documents"] else ""
    remark = f" Note: {result['remark']}." if result["remark"] else ""
    record = result["environment"]
    streams = f"{result['streams']:,} streams of up to" if result["streams"] > 1 else "one stream of"
    trained = "with carried state on" if result.get("trained_with_state") else "on"
    return (
        f"{result['architecture']}, {result['updates']:,} updates, trained {trained} samples of "
        f"{result['tokens_per_sample']:,}; {result['split']} split as {streams} "
        f"{result['longest']:,} tokens, {result['segment']:,} at a time{resets}; commit {record['commit']}, "
        f"{record['date']}.{remark}"
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Perplexity, tokens per second and memory against the position, each at the end of its bucket."""
    method = LANGUAGE_MODELS.get(result["architecture"])
    label, color = (method.label, method.color) if method else (result["architecture"], "#000000")
    buckets, ends = result["buckets"], ends_of(result)
    measures = {
        "Perplexity per token": ("perplexity", "perplexity_per_token", 1),
        "Speed": ("tokens per second", "tokens_per_second", 1),
        "Memory in use": ("MiB", "memory_bytes", MIB),
    }
    panels = []
    for title, (unit, key, size) in measures.items():
        curve = Curve(label, color, ends, [bucket[key] / size for bucket in buckets])
        panels.append((title, "position up to, tokens", unit, [curve]))
    asks = "Read with carried state, do perplexity, speed and memory stay the same at later positions?"
    plot_curves(path, panels, asks=asks, note=f"float32; {where(result['environment'])}. {caption(result)}")


def ends_of(result: dict[str, Any]) -> list[int]:
    """Where each bucket ends, the last one at the end of the longest stream."""
    return [min(bucket["end"], result["longest"]) for bucket in result["buckets"]]


def way_tables(section: RecordGroup) -> list[str]:
    """Perplexity ratios: each model trained with carried state over the same model trained without."""
    rows, alone = [], []
    models, segments = section.choices["model"], section.choices["segment"]
    groups = grouped(section.records, lambda record: (record["cell"]["model"], record["cell"]["segment"]))
    for model, segment in product(models, segments):
        group = groups.get((model, segment), [])
        own = ratio(group, "carried", "apart")
        if own is not None:  # both ways were trained
            alike = [ratio(group, reading, reading) for reading in READINGS.values()]
            shown = [f"{one:.2f}" for one in (*alike, own)]
            rows.append([models[model].label, segment, *shown])
            alone.append(own)
    if not rows:
        return []
    header = ["trained with / without carried state", "segment", *READINGS, "each as it was trained"]
    worse = sum(one > 1 for one in alone)
    return [
        markdown_table(header, rows),
        f"Trained and evaluated with carried state, {worse} of {len(alone)} models are worse than the same "
        f"model without ({min(alone):.2f} to {max(alone):.2f} times its perplexity).",
    ]


def ratio(records: Sequence[Record], with_state: str, apart: str) -> float | None:
    """Median perplexity of the runs trained with carried state, read `with_state`, over the others' median.

    The others are read as `apart` says. None if either way of training is missing.
    """
    middles = []
    for way, reading in (("carried", with_state), ("apart", apart)):
        values = [
            one["found"][reading]["perplexity_per_token"] for one in records if one["cell"]["way"] == way
        ]
        if not values:
            return None
        middles.append(statistics.median(values))
    return middles[0] / middles[1]


def draw_positions(section: RecordGroup, source: str, path: Path) -> None:
    """Perplexity by position with carried state, a panel per segment: the first seed."""
    shown, panels = of_first_seed(section.records), []
    colors = colors_of(list(dict.fromkeys((record["cell"]["model"],) for record in shown)))
    groups = grouped(shown, lambda one: one["cell"]["segment"])
    for segment in filter(groups.get, section.choices["segment"]):
        group = groups[segment]
        curves = [_curve(record, colors[record["cell"]["model"],]) for record in group]
        ends, level = (curves[0].x[0], curves[0].x[-1]), group[0]["found"]["unigram_perplexity"]
        curves.append(level_line("token frequencies", ends, level))
        panels.append((f"Segments of {segment}", "position up to, tokens", "perplexity per token", curves))
    plot_curves(path, panels, asks=ASKS, note=note_of_seed(shown), source=source)


def _curve(record: Record, color: str) -> Curve:
    result, label = record["found"]["carried"], label_of(record["cell"]["model"])
    x, y = ends_of(result), [bucket["perplexity_per_token"] for bucket in result["buckets"]]
    if record["cell"]["way"] == "apart":
        return Curve(f"{label}, without", tint(color, APART), x, y)
    return Curve(label, color, x, y)


EXTRAS = {
    "carried": Extras(way_tables, {"positions": draw_positions}),
    "language_model": Extras(settings_tables),
}
