"""The JSON and the PNG of an analysis: made once for given settings, drawn from the JSON alone."""

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.errors import UserError
from pipeline.files import FINGERPRINT, fingerprint, once, shown_path
from pipeline.outputs import check_output, json_with
from pipeline.provenance import environment
from pipeline.reports.analysis import write_figure
from pipeline.verdicts import CONFIRMED, Verdict, judge_fact

DIGITS = 6  # significant ones in the JSON files
LAYOUT = 1  # of the JSON files; a higher number has all figures made again

FIGURE = json_with(FINGERPRINT, "name", "settings")
PICTURE = ".png"  # beside the JSON

Record = dict[str, Any]


def publish(options: Namespace, name: str, settings: Record, make: Callable[[], Record]) -> None:
    """Write SUBCOMMAND/NAME.json and .png below `options.out`, unless they are there.

    `settings` is all that decides the result; `make` returns title, note, panels (or bubbles), and what else
    the record holds. Raises UserError if the JSON file was made with other settings.
    """
    path = options.out.absolute() / options.what / f"{name}.json"
    check_output(path, FIGURE, beside=(PICTURE,), makes_folder=True)
    mark = fingerprint([LAYOUT, options.what, name, settings])

    def complete() -> Record:
        print(f"{options.what}, {name}: started", flush=True)
        return {"name": name, "settings": settings, **rounded(make()), **environment("cpu")}

    record = once(path, mark, complete, f"{options.what}, {name}")
    if not path.with_suffix(PICTURE).is_file():
        write_figure(path)
    print(f"{options.what}, {name}: {shown_path(path.with_suffix('.png'))}", flush=True)
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
        write_figure(path)
        print(f"drawn: {shown_path(path.with_suffix('.png'))}", flush=True)


def rounded(value: Any) -> Any:
    """`value` for JSON: tensors as lists, numbers with six digits, None for what is not finite."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def check(statement: str, expected: str, measured: str, holds: bool) -> Record:
    """A statement that a computation decides: what it says, what was found, and the verdict."""
    return claim(statement, expected, judge_fact(holds), measured)


def claim(statement: str, expected: str, verdict: Verdict, measured: str = "") -> Record:
    """A statement with its verdict, which says what was found unless `measured` does."""
    found = f"{measured}; {verdict.effect}" if measured and verdict.effect else measured or verdict.effect
    return {"statement": statement, "expected": expected, "measured": found, "verdict": verdict.outcome}


Part = tuple[Record, list[Record]]
"""A panel and what is checked about it."""


def of_parts(parts: Sequence[Part]) -> Record:
    """The panels and checks of a figure that is made of parts."""
    return {
        "panels": [panel for panel, _ in parts],
        "checks": [one for _, checks in parts for one in checks],
    }


def chosen(options: Namespace, *names: str) -> Record:
    """The options of these names, for the settings of a figure."""
    return {name: getattr(options, name) for name in names}


def curve(
    label: str, x: Sequence[float], y: Sequence[float], method: str | None = None, **look: Any
) -> Record:
    """A curve of a panel; `look`: `style`, `shade`, `low` and `high`."""
    return {"label": label, "method": method, "x": list(x), "y": list(y), **look}


def banded(label: str, x: Sequence[float], draws: torch.Tensor, method: str | None = None, **look) -> Record:
    """The mean of `draws: (draws, points)` with their range as a band."""
    band = {"low": draws.amin(0), "high": draws.amax(0)}
    return curve(label, x, draws.mean(0).tolist(), method, **band, **look)


def lines(
    title: str, x_label: str, y_label: str, curves: list[Record], x: str = "linear", y: str = "linear"
) -> Record:
    """A panel of lines; `x` and `y` are the scales."""
    return {
        "kind": "lines",
        "title": title,
        "x_label": x_label,
        "y_label": y_label,
        "scales": [x, y],
        "curves": curves,
    }
