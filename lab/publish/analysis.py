"""From the JSON file of an analysis to its PNG, and the pages of all figures.

A record holds `panels`, each of one `kind`:

* lines: `curves` of `x`, `y` and, for a band, `low` and `high`; `scales` "log" or "linear" for both axes;
  `x_range`, the part that is drawn; `labels`, "peaks" for names beside the highest points;
* bars: `groups`, the names below the bars, and `series` with a value for each of them;
* map: an attention matrix `values`, shown as log10(N P) from -2 to 2 around uniform attention, zeros white;
  if `causal`, N is the number of positions that a row sees.

A curve has the colour of its `method` (a key of `methods.ANALYSED`; several of one in a panel have tints),
or of its place `shade` from 0 to 1 on a scale, for layers, or is grey. The same JSON file gives the same PNG,
byte for byte.
"""

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from lab.errors import UserError
from lab.files import check_output, is_generated, marked, read_json, shown_path, write_atomically
from lab.methods import ANALYSED
from lab.papers import statement, statements
from lab.publish.plots import (
    BAND,
    GREY,
    LAST_OF_SCALE,
    PALEST,
    PLAIN,
    SIDE_BY_SIDE,
    Curve,
    Point,
    label_ends,
    label_points,
    on_scale,
    plot_points,
    save_figure,
    tint,
)
from lab.publish.tables import grouped, markdown_table, where
from lab.verdicts import CONFIRMED, CONTRADICTED, UNDECIDED

WIDTH, HEIGHT, ALONE = 5.2, 4.2, 7.0  # inches of a panel, and the width of one alone; a map is square
PEAKS = "peaks"  # where the names of curves stand
OF_ONE_RUN = "training"  # the folder whose figures show one run each
OURS = "ours"  # the key of a statement that no paper makes
REACH = 2  # of the colours of a map, in powers of ten around uniform attention
MANY = 200  # points of a curve whose line is thin
PanelRecord = dict[str, Any]
HEAD = """# What attention does

Do gradients, entropy and locality of attention behave as the papers say?
"""
MADE = """Figures of TransNormer (Qin et al. 2022) and Linear Log-Normal attention (LLN, Nahshan et al. 2024).
`scripts/lab.sh figures` makes them, each with a JSON file that holds settings, seeds, series and tests;
`scripts/lab.sh figures report` writes these pages. [docs/analysis.md](../../docs/analysis.md) defines each
figure and says where the papers leave a choice. The studies [analysis_runs](../analysis_runs/README.md) and
[analysis_encoders](../analysis_encoders/README.md) trained the models behind the figures; all of them have
learned more than token frequencies.
"""
UNCOUNTED = "Rows marked (ours) test statements of this project and are not counted.\n"
NORMS = (
    "c1 is the largest norm of the loss's gradient by an output (for NormAttention, by the output after "
    "RMSNorm), c2 the largest norm of a value."
)
"""What a note with c1 c2 is about."""
TITLES = {
    "theory": "Figures and checks that need no model",
    "gradients": "Gradients and loss in training",
    "bounds": "Gradients by the scores of a trained model",
    "tradeoff": "Quality against speed",
    "attention": "Attention of trained models",
    "training": "Attention in the course of training",
    "temperature": "LLN with fixed exponents",
}
"""The title of the page of each subcommand's figures."""
TRAINED, ANALYSED_IN = "Trained in float32", "Models in float32, measures in float64"
DTYPES = {
    "theory": "Computed in float64",
    "gradients": TRAINED,
    "bounds": ANALYSED_IN,
    "attention": ANALYSED_IN,
    "training": ANALYSED_IN,
    "temperature": TRAINED,
}
"""The dtype of each subcommand's figures; those of `tradeoff`, read from tables, name theirs themselves."""


def draw_record(path: Path) -> bool:
    """The PNG of the JSON file `path`, beside it; False for a figure that has no picture."""
    record, asks = read_json(path), statement(f"{path.parent.name}/{path.stem}")["asks"]
    if not asks:
        return False
    picture = path.with_suffix(".png")
    note = record["note"]
    if dtype := DTYPES.get(path.parent.name):
        note = f"{note.rstrip('.')}. {dtype}; {where(record)} ({record['date']})."
    if "bubbles" in record:
        points = [Point(b["label"], ANALYSED[b["method"]].color, b["x"], b["y"]) for b in record["bubbles"]]
        labels = {key: record[key] for key in ("x_label", "y_label")}
        plot_points(picture, points, asks=asks, note=note, **labels)
        return True
    panels = record["panels"]
    columns = min(SIDE_BY_SIDE, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (ALONE if columns == 1 else WIDTH * columns, HEIGHT * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    painters = {"lines": _lines, "bars": _bars, "map": _map}
    for axis, panel in zip(axes.flat, panels, strict=False):
        axis.set_title(panel["title"], loc="left", fontsize=11, **PLAIN)
        axis.set_xlabel(panel.get("x_label", ""))
        axis.set_ylabel(panel.get("y_label", ""))
        painters[panel["kind"]](axis, panel)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    save_figure(figure, picture, asks, note)
    return True


def _colors(methods: Sequence[str | None], shades: Sequence[float | None]) -> list[str]:
    """A colour for each item: its method's, in tints where there are several of one; its shade; or grey."""
    found, seen = [], Counter()
    for method, shade in zip(methods, shades, strict=True):
        if method:
            share = PALEST * seen[method] / max(1, methods.count(method) - 1)
            found.append(tint(ANALYSED[method].color, share))
            seen[method] += 1
        else:
            found.append(GREY if shade is None else on_scale(LAST_OF_SCALE * shade))
    return found


def _lines(axis: Axes, panel: PanelRecord) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, color="0.92")
    x_scale, y_scale = panel.get("scales", ("linear", "linear"))
    axis.set_xscale(x_scale)
    axis.set_yscale(y_scale)
    first, last = panel.get("x_range", (-math.inf, math.inf))
    shown = []
    methods, shades = ([curve.get(key) for curve in panel["curves"]] for key in ("method", "shade"))
    for curve, color in zip(panel["curves"], _colors(methods, shades), strict=True):
        pairs = [
            (x, y)
            for x, y in zip(curve["x"], curve["y"], strict=True)
            if y is not None and math.isfinite(y) and first <= x <= last
        ]
        if not pairs:
            continue
        x, y = zip(*pairs, strict=True)
        style = curve.get("style", "-")
        axis.plot(x, y, style, color=color, lw=0.6 if len(x) > MANY else 1.7, ms=4)
        if "low" in curve:
            axis.fill_between(curve["x"], curve["low"], curve["high"], color=color, alpha=BAND, lw=0)
        shown.append(Curve(curve["label"], color, x, y, style))
    for one, scale in ((axis.xaxis, x_scale), (axis.yaxis, y_scale)):
        if scale == "log":
            _few_labels(one)
    if x_scale == "linear" and all(isinstance(x, int) for curve in panel["curves"] for x in curve["x"]):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "y_range" in panel:
        axis.set_ylim(*panel["y_range"])
    if panel.get("labels") == PEAKS:
        _label_peaks(axis, shown)
    else:
        label_ends(axis, shown, y_scale == "log")


def _label_peaks(axis: Axes, curves: Sequence[Curve]) -> None:
    """The name of each curve beside its highest point, for densities, all of which end at zero."""
    tops = [(curve, *max(zip(curve.y, curve.x, strict=True))) for curve in curves]
    label_points(axis, [Point(curve.label, curve.color, x, y) for curve, y, x in tops])


def _few_labels(one: Axis) -> None:
    """Powers of ten, or 1, 2 and 5 times them where there are few."""
    one.set_minor_formatter(NullFormatter())
    low, high = one.get_view_interval()
    if high < 500 * low:
        one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _bars(axis: Axes, panel: PanelRecord) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, axis="y", color="0.92")
    axis.set_axisbelow(True)
    series, groups = panel["series"], panel["groups"]
    width = 0.8 / len(series)
    places = np.arange(len(groups))
    colors = _colors(panel["methods"], [None] * len(groups))
    for number, one in enumerate(series):
        x = places + (number - (len(series) - 1) / 2) * width
        values = [math.nan if value is None else value for value in one["values"]]
        fill = ["none"] * len(colors) if one.get("hollow") else colors
        axis.bar(x, values, 0.92 * width, color=fill, edgecolor=colors, linewidth=1.4)
        if "low" in one:
            axis.vlines(x, one["low"], one["high"], color="0.3", lw=1.2)
        for place, value, top in zip(x, values, one.get("high", values), strict=True):
            if math.isfinite(value):
                text = f"{one['label']}\n{value:.3g}"
                axis.annotate(
                    text,
                    (place, top),
                    xytext=(0, 3),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                    color="0.25",
                )
    axis.set_xticks(places, groups, fontsize=8)
    axis.margins(y=0.18)


def _map(axis: Axes, panel: PanelRecord) -> None:
    values = np.array(panel["values"], dtype=float)
    length = values.shape[1]
    visible = np.arange(1, length + 1)[:, None] if panel.get("causal") else length
    with np.errstate(divide="ignore"):
        relative = np.log10(values * visible)
    relative = np.ma.masked_where(values == 0, np.clip(relative, -REACH, REACH))
    colors = matplotlib.colormaps["cividis"].with_extremes(bad="white")
    axis.imshow(relative, cmap=colors, vmin=-REACH, vmax=REACH, interpolation="nearest")
    if tokens := panel.get("tokens"):
        places = np.arange(0, len(tokens), max(1, len(tokens) // 16))
        names = [tokens[i] for i in places]
        axis.set_xticks(places, names, rotation=90, fontsize=7)
        axis.set_yticks(places, names, fontsize=7)
    if panel.get("color_bar"):
        scale = ScalarMappable(Normalize(-REACH, REACH), colors)
        axis.figure.colorbar(scale, ax=axis, shrink=0.85, label="log10 of the weight over a uniform one")


def write_report(folder: Path) -> None:
    """Write the pages of all figures in `folder`, from their JSON files."""
    check_output(folder / "README.md", is_generated, makes_folder=True)
    texts = pages(folder)
    if not texts:
        raise UserError(
            f"{shown_path(folder)} holds no figure; scripts/lab.sh figures theory makes the first ones"
        )
    for page, text in texts.items():
        check_output(page, is_generated)
        write_atomically(page, text.encode())
        print(f"written: {shown_path(page)}")


def pages(folder: Path) -> dict[Path, str]:
    """The text of README.md in `folder` and in each of its folders with figures; empty without figures."""
    found = figures_in(folder)
    if not found:
        return {}
    texts = {folder / "README.md": marked("\n".join([HEAD, answer(found), index(found), UNCOUNTED, MADE]))}
    for part, figures in grouped(found, lambda one: one.folder).items():
        head = f"# {TITLES[part]}\n\n[All figures](../README.md)\n"
        texts[folder / part / "README.md"] = marked("\n".join([head, *map(section, figures)]))
    return texts


@dataclass(frozen=True)
class Made:
    """A figure in its `folder`: the row of `statements.csv` that it is about, and its JSON file."""

    folder: str
    name: str
    row: dict[str, str]
    record: dict[str, Any]


def figures_in(folder: Path) -> list[Made]:
    """The figures of all its folders, in the order of `statements.csv`."""
    names = sorted(f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.json"))
    found: dict[str, Made] = {}
    for row in statements():
        for name in fnmatch.filter(names, row["figure"]):
            if name not in found:
                found[name] = Made(*name.split("/"), row, read_json(folder / f"{name}.json"))
    return list(found.values())


def checks_of(folder: str, record: dict[str, Any]) -> list[dict[str, str]]:
    """The statements tested by a figure, with their verdicts: one run decides none."""
    checks = record.get("checks", [])
    if folder != OF_ONE_RUN:
        return checks
    return [
        {**one, "verdict": UNDECIDED, "measured": "; ".join(filter(None, (one["measured"], "one run")))}
        for one in checks
    ]


def claims_of(folder: str, record: dict[str, Any]) -> list[dict[str, str]]:
    """The papers' statements among those that a figure tests."""
    return [one for one in checks_of(folder, record) if not one.get(OURS)]


def answer(figures: Sequence[Made]) -> str:
    """How many statements of the papers came to which verdict."""
    counts = Counter(one["verdict"] for made in figures for one in claims_of(made.folder, made.record))
    counted = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    return f"Statements of the papers: {counted}.\n"


def index(figures: Sequence[Made]) -> str:
    """A row for each figure: its page, how many of the paper's statements hold, which are contradicted."""
    rows = []
    for one in figures:
        checks, title = claims_of(one.folder, one.record), one.record["title"]
        confirmed = sum(check["verdict"] == CONFIRMED for check in checks)
        refuted = "; ".join(check["statement"] for check in checks if check["verdict"] == CONTRADICTED)
        link = f"[{title}]({place(one.folder, title)})"
        rows.append([one.row["source"], link, f"{confirmed} of {len(checks)}" if checks else "", refuted])
    return markdown_table(["paper", "figure", "confirmed", "contradicted"], rows, figures=False) + "\n"


def place(folder: Path | str, title: str) -> str:
    """Where a link to the figure with this title leads: its heading on the page of its folder."""
    heading = re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
    return f"{folder}/README.md#{heading}"


def section(one: Made) -> str:
    """One figure: the paper's statement, the picture, the tests, and where it was made."""
    row, record = one.row, one.record
    said = row["statement"].format_map(row)
    lines = [f"## {record['title']}", "", f"**{row['source']}:** {said}", ""]
    if row["asks"]:
        lines += [f"![{row['asks']}]({one.name}.png)", ""]
    lines += [f"{record['note']} {NORMS}" if re.search(r"\bc1\b", record["note"]) else record["note"], ""]
    if "training" in record:
        lines += [trained(record["training"]), ""]
    if checks := checks_of(one.folder, record):
        columns = ("expected", "measured", "verdict")
        rows = [(stated(check), *(check[key] for key in columns)) for check in checks]
        lines += [markdown_table(("statement", "expected", "found", "verdict"), rows), ""]
    command = re.sub(r"^(studies\.analyse|scripts/analyse\.sh)", "scripts/lab.sh figures", record["command"])
    made = f"`{command}`, commit {record['commit']}, {record['date']}, {where(record)}"
    return "\n".join([*lines, f"<sub>{made}; [JSON]({one.name}.json)</sub>", ""])


def stated(check: dict[str, str]) -> str:
    """The statement of a test, marked unless a paper makes it."""
    return f"(ours) {check['statement']}" if check.get(OURS) else check["statement"]


def trained(training: dict[str, Any]) -> str:
    """How the models of a figure were trained: what differs from the papers' setting."""
    return (
        f"Trained here: {training['layers']} layers of width {training['width']} on {training['corpus']}, "
        f"{training['updates']:,} updates of about {training['tokens_per_update']:,.0f} tokens, far from "
        "the papers' sizes and budgets."
    )
