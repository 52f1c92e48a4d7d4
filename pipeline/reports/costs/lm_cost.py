"""From the records of `lm_cost.py` to tables, plots and a verdict on the linear models' cost."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.methods import (
    LANGUAGE_MODEL_PANELS,
    LANGUAGE_MODELS,
    TRANSNORMERS,
    Size,
    groups,
    performer_note,
)
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.tables import markdown_table, spread, where

NEAR, FAR, MOST_TRAINING = 1024, 16384, 1.2
EARLY, LATE, MOST_DECODING = 10, 100_000, 1.1


@dataclass(frozen=True)
class Cell:
    """What is known of one architecture at one length or position: samples of all its processes."""

    status: str
    seconds: list[float]
    peaks: list[int]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)


def cell(results: dict[str, Any], kind: str, architecture: str, at: int) -> Cell | None:
    """The samples of `architecture` at length or position `at`, or None if it was not measured."""
    records = [
        r
        for r in results["records"]
        if r["kind"] == kind
        and r["architecture"] == architecture
        and (kind == "decoding" or r["length"] == at)
    ]
    if not records:
        return None
    good = [r for r in records if r["status"] == "ok"]
    if not good:
        return Cell(records[0]["status"], [], [])
    if kind == "training":
        seconds = [x for r in good for x in r["step_seconds"]]
        return Cell("ok", seconds, [r["peak_bytes"] for r in good])
    seconds = [x for r in good for x in r["token_seconds"].get(str(at), [])]
    return Cell("ok", seconds, []) if seconds else None


def _row(results, kind, architecture, places, show) -> list[str]:
    cells = [cell(results, kind, architecture, at) for at in places]
    words = ["–" if c is None else show(c) if c.status == "ok" else c.status for c in cells]
    return [LANGUAGE_MODELS[architecture].label, *words]


def _table(results, kind, title, places, show) -> str:
    names = results["settings"]["architectures"]
    rows = [_row(results, kind, name, places, show) for name in names]
    return f"{title}\n\n" + markdown_table(["", *(f"{at:,}" for at in places)], rows)


def training_tables(results: dict[str, Any]) -> str:
    """Step time, tokens per second and peak memory against length, in Markdown."""
    settings = results["settings"]
    tokens, lengths = settings["tokens"], settings["lengths"]
    return "\n\n".join(
        _table(results, "training", title, lengths, show)
        for title, show in (
            ("Seconds per training step, median (range), by length:", lambda c: spread(c.seconds)),
            ("Tokens per second in training, by length:", lambda c: f"{tokens / c.median:,.0f}"),
            (
                "Peak memory of a training step above model, optimizer and libraries, "
                "KiB per token, by length:",
                lambda c: f"{max(c.peaks) / 1024 / tokens:.1f}",
            ),
        )
    )


def decoding_table(results: dict[str, Any]) -> str:
    """Time per decoded token against position, in Markdown."""
    thread = ", one thread" if results["settings"]["device"] == "cpu" else ""
    title = (
        f"Milliseconds per decoded token (batch 1{thread}), median (quartiles), by position (–: not within "
        "the time that reading the context may take):"
    )
    places = results["settings"]["positions"]
    return _table(results, "decoding", title, places, lambda c: _quartiles(c.seconds))


def _quartiles(seconds: list[float]) -> str:
    low, middle, high = statistics.quantiles([1000 * s for s in seconds], n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def caption(results: dict[str, Any]) -> str:
    """One paragraph: model size, batch, machine, versions, day."""
    settings = results["settings"]
    return (
        f"{Size(**settings['size'])}; float32, embeddings tied, dropout 0.1; "
        f"{settings['tokens']:,} random tokens per batch whatever the length; forward, backward and "
        "Adam; every architecture and length in processes of its own, taking turns. "
        f"{measured_on(results)}"
    )


def measured_on(results: dict[str, Any]) -> str:
    """Machine, versions, dates and commits in one sentence."""
    session, threads = results["sessions"][-1], results["settings"]["threads"]
    runs = sorted({f"{s['date']} (commit {s['commit']})" for s in results["sessions"]})
    return f"{where(session, threads)}, torch {session['versions']['torch']}, {' and '.join(runs)}."


@dataclass(frozen=True)
class Verdict:
    """A promise about cost, and what was measured: `ratio` is None where a part is missing."""

    promise: str
    ratio: float | None
    most: float

    def __str__(self) -> str:
        if self.ratio is None:
            return f"not measured: {self.promise}"
        met = "met" if self.ratio <= self.most else "NOT MET"
        return f"{met}: {self.promise}; measured {self.ratio:.2f}, allowed {self.most}"

    def short(self) -> str:
        """The figure, for a table whose header has the promise."""
        if self.ratio is None:
            return "not measured"
        return f"{self.ratio:.2f}" if self.ratio <= self.most else f"{self.ratio:.2f}, NOT MET"


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Whether T1 and T2 cost the same per token at any length, in training and in decoding."""
    found = []
    for name in TRANSNORMERS:
        label = LANGUAGE_MODELS[name].label
        near, far = (cell(results, "training", name, at) for at in (NEAR, FAR))
        for what, value in (("time", lambda c: c.median), ("peak memory", lambda c: max(c.peaks))):
            promise = f"{label}, training {what} per token at {FAR:,} over that at {NEAR:,}"
            found.append(Verdict(promise, _ratio(near, far, value), MOST_TRAINING))
        near, far = (cell(results, "decoding", name, at) for at in (EARLY, LATE))
        promise = f"{label}, time per decoded token at {LATE:,} over that at {EARLY:,}"
        found.append(Verdict(promise, _ratio(near, far, lambda c: c.median), MOST_DECODING))
    return found


def _ratio(near: Cell | None, far: Cell | None, value) -> float | None:
    if near is None or far is None or "ok" not in {near.status} & {far.status}:
        return None
    return value(far) / value(near)


def markdown(results: dict[str, Any]) -> str:
    """The whole report."""
    promises = "\n".join(f"- {verdict}" for verdict in verdicts(results))
    parts = [caption(results), training_tables(results), decoding_table(results), promises]
    parts += performer_note(results["settings"]["architectures"])
    return "\n\n".join(parts) + "\n"


def _curves(results, names, kind, places, value) -> list[Curve]:
    curves = []
    for name in names:
        points = [(at, cell(results, kind, name, at)) for at in places]
        points = [(at, value(c)) for at, c in points if c is not None and c.status == "ok"]
        if points:
            look = LANGUAGE_MODELS[name]
            curves.append(Curve(look.label, look.color, *zip(*points, strict=True)))
    return curves


def plot(results: dict[str, Any], path: Path) -> None:
    """Training time, peak memory, decoding time, per token, in one PNG; a row for every group of models."""
    settings = results["settings"]
    tokens, lengths, positions = settings["tokens"], settings["lengths"], settings["positions"]
    length, position = "length of a sequence, tokens", "position, tokens"
    panels = []
    for title, names in groups(settings["architectures"], LANGUAGE_MODEL_PANELS).items():
        time = _curves(results, names, "training", lengths, lambda c: 1e6 * c.median / tokens)
        memory = _curves(results, names, "training", lengths, lambda c: max(c.peaks) / 1024 / tokens)
        decoding = _curves(results, names, "decoding", positions, lambda c: 1e3 * c.median)
        panels += [
            (f"Training time per token{title}", length, "microseconds", time),
            (f"Peak training memory per token{title}", length, "KiB", memory),
            (f"Decoding time per token{title}", position, "milliseconds", decoding),
        ]
    plot_curves(path, panels, columns=3, note=caption(results))
