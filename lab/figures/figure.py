"""The JSON and the PNG of an analysis: made once for given settings, drawn from the JSON alone."""

import math
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

import torch

from lab.errors import UserError
from lab.files import FINGERPRINT, check_output, fingerprint, json_with, once, shown_path
from lab.provenance import environment
from lab.publish.analysis import OURS, draw_record
from lab.verdicts import CONFIRMED, Verdict, judge_fact

DIGITS = 6  # significant digits in the JSON files
LAYOUT = 1  # version of the JSON files; a higher number has all figures made again

FIGURE = json_with(FINGERPRINT, "name", "settings")
PICTURE = ".png"  # beside the JSON

Content = dict[str, Any]


def write_once(options: Namespace, name: str, settings: Content, make: Callable[[], Content]) -> None:
    """Write SUBCOMMAND/NAME.json and .png below `options.out`, unless they are there.

    `settings` is all that decides the result; `make` returns title, note, panels (or bubbles), and what else
    the record holds. Raises UserError if the JSON file was made with other settings.
    """
    path = options.out.absolute() / options.what / f"{name}.json"
    check_output(path, FIGURE, beside=(PICTURE,), makes_folder=True)
    mark = fingerprint([LAYOUT, options.what, name, settings])

    def complete() -> Content:
        print(f"{options.what}, {name}: started", flush=True)
        return {"name": name, "settings": settings, **rounded(make()), **environment("cpu")}

    record = once(path, mark, complete, f"{options.what}, {name}")
    picture = path.with_suffix(PICTURE)
    drawn = picture.is_file() or draw_record(path)
    print(f"{options.what}, {name}: {shown_path(picture if drawn else path)}", flush=True)
    for found in record.get("checks", []):
        if found["verdict"] != CONFIRMED:
            print(f"  {found['verdict']}: {found['statement']}: {found['measured']}", flush=True)


def redraw(options: Namespace) -> None:
    """The PNG of every JSON file of the subcommand, from these files alone."""
    folder = options.out.absolute() / options.what
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UserError(f"{shown_path(folder)} holds no JSON file to draw from; run without --redraw first")
    for path in paths:
        check_output(path, FIGURE, beside=(PICTURE,))
    for path in paths:
        if draw_record(path):
            print(f"drawn: {shown_path(path.with_suffix('.png'))}", flush=True)


def rounded(value: Any) -> Any:
    """`value` for JSON: tensors as lists, numbers with six digits, None for NaN and infinity."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def chosen(options: Namespace, *names: str) -> Content:
    """The options of these names, for the settings of a figure."""
    return {name: getattr(options, name) for name in names}


class LinePanel(dict[str, Any]):
    """A panel of lines, as a record holds it."""

    def curve(
        self, label: str, x: Iterable[float], y: Iterable[float], method: str | None = None, **look: Any
    ) -> None:
        """Add a curve; `look`: `style`, `shade`, `low` and `high`."""
        self["curves"].append({"label": label, "method": method, "x": list(x), "y": list(y), **look})

    def banded(
        self, label: str, x: Iterable[float], draws: torch.Tensor, method: str | None = None, **look: Any
    ) -> None:
        """Add the mean of `draws: (draws, points)` with their range as a band."""
        self.curve(label, x, draws.mean(0).tolist(), method, low=draws.amin(0), high=draws.amax(0), **look)


class Figure:
    """A figure under construction: its panels, its checks, and further entries of its record."""

    def __init__(self, title: str, **about: Any) -> None:
        self.about: Content = {"title": title, **about}
        self.panels: list[Content] = []
        self.checks: list[Content] = []

    def lines(
        self, title: str, x_label: str, y_label: str, x: str = "linear", y: str = "linear"
    ) -> LinePanel:
        """Add a panel, without curves so far; `x` and `y` are the scales."""
        labels = {"title": title, "x_label": x_label, "y_label": y_label}
        panel = LinePanel(kind="lines", **labels, scales=[x, y], curves=[])
        self.panels.append(panel)
        return panel

    def bars(
        self, title: str, y_label: str, groups: Iterable[str], methods: Iterable[str], *series: Content
    ) -> None:
        """Add a panel of bars; each of `series` has a `label` and a value for each group."""
        names = {"groups": list(groups), "methods": list(methods)}
        self.panels.append({"kind": "bars", "title": title, "y_label": y_label, **names, "series": [*series]})

    def check(self, statement: str, expected: str, measured: str, holds: bool, ours: bool = False) -> None:
        """Add a statement that a computation decides: its text, the measured value, and the verdict.

        A statement is `ours` if no paper makes it.
        """
        self.claim(statement, expected, judge_fact(holds), measured)
        if ours:
            self.checks[-1][OURS] = True

    def claim(self, statement: str, expected: str, verdict: Verdict, measured: str = "") -> None:
        """Add a statement with its verdict, whose effect is shown unless `measured` is given."""
        found = "; ".join(words for words in (measured, verdict.effect) if words)
        self.checks.append(
            {"statement": statement, "expected": expected, "measured": found, "verdict": verdict.outcome}
        )

    def record(self, note: str, **more: Any) -> Content:
        """The content for `write_once`: everything added, the note and `more`; bubbles have no panels."""
        panels = {"panels": self.panels} if self.panels else {}
        return {**self.about, **panels, **more, "note": note, "checks": self.checks}
