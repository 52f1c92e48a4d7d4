"""Line plots for people: a question above, log axes where asked, curves named where they end, units."""

import io
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lab.files import write_atomically
from lab.methods import NAMED
from lab.publish.tables import grouped

PLAIN: dict[str, Any] = {"parse_math": False}  # a name may contain dollar signs
MOST_TICKS = 8  # named places of a logarithmic x axis
NOTE_LINE, NOTE_GAP = 0.16, 0.14  # inches for a line of the note, and around it
DOT = 6.0  # pixels around a point that no name covers
BAND = 0.15  # opacity of a band around a curve
LABEL_STEP = 13.0  # points between two names of points
COLORS, DPI = 64, 120  # of a picture
GREY = "#777777"  # of what is not a method
EDGES = (0, 1 / 3, 2 / 3)  # shares of white in the colours of a line or a text, at its edges
LIGHTEST = 0.3  # luminance of a text on white, whose contrast is then 3
SIDE_BY_SIDE = 2  # panels that a page shows in a readable size
LAST_OF_SCALE = 0.85  # the last place on `on_scale`, whose end is too pale
PALEST = 0.5  # how far towards white the last of several variants of a method goes
LABEL_GAP = 0.055  # smallest distance of two labels, as a part of the panel's height
LABEL_PLACE = 1.04  # where labels begin, as a part of the panel's width
QUESTION, QUESTION_LINE, QUESTION_GAP = 12, 0.22, 0.12  # points, inches for a line of it, and around it


@dataclass(frozen=True)
class Curve:
    """One line, its name written at its end unless empty; `style` is matplotlib's line style.

    A style alone never tells two lines apart: each has its own colour, or `tint`, and its own name.
    `low` and `high` are the edges of a band around it, if it has one.
    """

    label: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def level_line(label: str, ends: tuple[float, float], level: float) -> Curve:
    """A grey horizontal line between two places of the x axis, for what is not a method."""
    return Curve(label, GREY, ends, (level, level), ":")


@dataclass(frozen=True)
class Point:
    """A method at a point."""

    label: str
    color: str
    x: float
    y: float


Panel = tuple[str, str, str, list[Curve]]


def plot_curves(
    path: Path,
    panels: Sequence[Panel],
    *,
    asks: str,
    note: str,
    columns: int | None = None,
    log: bool = True,
    doublings: bool = False,
    markers: bool = True,
    source: str = "",
) -> None:
    """Write a PNG with the panels `(title, x label, y unit, curves)`, row after row; the last fills its row.

    Args:
        path: the PNG, written in one piece.
        panels: those with the same unit share the range of their y axis; one without curves stays empty, with
            its title.
        asks: the question that the picture answers, printed above it.
        note: printed below: what was measured, where, when.
        columns: panels side by side; default: `SIDE_BY_SIDE`, and never more.
        log: logarithmic axes, without the points that are not positive.
        doublings: a logarithmic x axis with base 2, each of its places named.
        markers: a dot at every point.
        source: identifies the data of the picture, kept in its "Source" field.
    """
    columns = min(columns or SIDE_BY_SIDE, SIDE_BY_SIDE, len(panels))
    if log:
        panels = [(*texts, _positive(curves)) for *texts, curves in panels]
    figure = figure_of_panels(panels, columns, log, markers)
    if doublings:
        for axis, (*_, curves) in zip(figure.axes, panels, strict=True):
            _double_along(axis, curves)
    save_figure(figure, path, asks, note, source)


def figure_of_panels(panels: Sequence[Panel], columns: int, log: bool, markers: bool) -> Figure:
    """The panels of `plot_curves`, which explains the arguments, as a figure of matplotlib's."""
    rows = math.ceil(len(panels) / columns)
    size = ((5.2 if columns > 1 else 7) * columns, 4.6 * rows)
    figure = plt.figure(figsize=size)
    grid = figure.add_gridspec(rows, columns)
    places = [grid[divmod(number, columns)] for number in range(len(panels) - 1)]
    row, column = divmod(len(panels) - 1, columns)
    axes = [figure.add_subplot(place) for place in (*places, grid[row, column:])]
    first: dict[str, Axes] = {}  # of each unit
    for axis, (title, x_label, y_label, curves) in zip(axes, panels, strict=True):
        axis.set_title(title, loc="left", fontsize=12, **PLAIN)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        if first.setdefault(y_label, axis) is not axis:
            axis.sharey(first[y_label])
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, color="0.92")
        for curve in curves:
            marker = "o" if markers and curve.style == "-" else ""
            axis.plot(curve.x, curve.y, curve.style, color=curve.color, marker=marker, ms=4, lw=1.8)
            if curve.low:
                axis.fill_between(curve.x, curve.low, curve.high, color=curve.color, alpha=BAND, lw=0)
        if log and curves:
            _log_axes(axis, curves, [c for *_, unit, alike in panels if unit == y_label for c in alike])
    for axis, (*_, curves) in zip(axes, panels, strict=True):
        label_ends(axis, curves, log)
    return figure


def plot_points(
    path: Path,
    points: Sequence[Point],
    *,
    asks: str,
    x_label: str,
    y_label: str,
    note: str,
    source: str = "",
) -> None:
    """Write a PNG of named dots, x logarithmic; arguments as for `plot_curves`."""
    figure, axis = plt.subplots(figsize=(8.0, 5.6))
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, color="0.92")
    axis.set_xscale("log")
    axis.margins(0.15)
    for point in points:
        axis.plot(point.x, point.y, "o", color=point.color, ms=6)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(_plain))
    axis.xaxis.set_minor_formatter(NullFormatter())
    frame_figure(figure, asks, note)
    label_points(axis, points)
    write_figure(figure, path, source)


def label_points(axis: Axes, points: Sequence[Point]) -> None:
    """Place each name clear of names and curves: beside its point, or above or below with a line to it."""
    axis.figure.draw_without_rendering()  # the limits of the axes decide where names are
    renderer = axis.figure.canvas.get_renderer()
    curves = [line.get_path().transformed(axis.transData) for line in axis.lines]
    places = axis.transData.transform([(point.x, point.y) for point in points])
    taken = [Bbox.from_bounds(x - DOT / 2, y - DOT / 2, DOT, DOT) for x, y in places]
    for point in sorted(points, key=lambda one: (one.y, one.x)):
        text, line = None, {"arrowstyle": "-", "color": point.color, "lw": 0.8, "shrinkA": 0, "shrinkB": 2}
        for steps, side in itertools.product(range(12), (1, -1)):
            if text is not None:
                text.remove()
            height = 4 + LABEL_STEP * ((steps + 1) // 2) * (-1) ** steps
            line["relpos"] = (side < 0, steps % 2)  # from the name's corner near the point
            text = axis.annotate(
                point.label,
                (point.x, point.y),
                xytext=(6 * side, height),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                color=readable(point.color),
                fontsize=9,
                **PLAIN,
                arrowprops=line if steps > 1 else None,
            )
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # without the line
            within = axis.bbox.x0 <= box.x0 and box.x1 <= axis.bbox.x1
            covers = any(curve.intersects_bbox(box, filled=False) for curve in curves)
            if within and not covers and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


def save_figure(figure: Figure, path: Path, asks: str, note: str, source: str = "") -> None:
    """Write the figure with the question that it answers above its panels and `note` below them."""
    frame_figure(figure, asks, note)
    write_figure(figure, path, source)


def frame_figure(figure: Figure, asks: str, note: str) -> None:
    """Give the panels their final places, below the question and above the note."""
    width, height = figure.get_size_inches()
    question = textwrap.wrap(asks, int(9.5 * width))
    lines = textwrap.wrap(note, int(15 * width))
    above = QUESTION_LINE * len(question) + QUESTION_GAP
    below = NOTE_LINE * len(lines) + NOTE_GAP
    figure.set_size_inches(width, height + above)
    height += above
    figure.text(
        0.01,
        1 - QUESTION_GAP / 2 / height,
        "\n".join(question),
        fontsize=QUESTION,
        va="top",
        fontweight="bold",
        **PLAIN,
    )
    figure.text(0.01, 0.01, "\n".join(lines), fontsize=8, color="0.35", va="bottom", **PLAIN)
    figure.tight_layout(rect=(0, below / height, 1, 1 - above / height))


def write_figure(figure: Figure, path: Path, source: str) -> None:
    """Write the figure in few colours, those of its lines, texts and maps among them, and close it."""
    drawn = [one.get_color() for one in figure.findobj(lambda one: isinstance(one, Line2D | Text))]
    drawn = [tint(color, share) for color in drawn for share in EDGES]
    maps = {image.cmap.name: image.cmap for image in figure.findobj(AxesImage)}
    drawn += [one(place) for one in maps.values() for place in np.linspace(0, 1, COLORS)]
    colors = {tuple(round(255 * level) for level in to_rgb(color)) for color in drawn}
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, metadata={"Source": source})
    plt.close(figure)
    write_atomically(path, with_palette(picture.getvalue(), sorted(colors)))


def with_palette(png: bytes, kept: Sequence[tuple[int, ...]]) -> bytes:
    """The picture in the colours `kept` and its `COLORS` most frequent ones, a third of the bytes.

    Its texts stay.
    """
    picture, few, texts = Image.open(io.BytesIO(png)), io.BytesIO(), PngInfo()
    for key, text in picture.text.items():
        texts.add_text(key, text)
    pixels = np.asarray(picture.convert("RGB"), dtype=np.int64)
    found, places, counts = np.unique(pixels @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True)
    colors = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)
    palette = np.concatenate([kept, colors[np.argsort(-counts, kind="stable")[:COLORS]]])[:256]
    nearest = np.stack([((colors - one) ** 2).sum(1) for one in palette]).argmin(0)
    plain = Image.fromarray(nearest[places].reshape(pixels.shape[:2]).astype(np.uint8), "P")
    plain.putpalette(palette.astype(np.uint8).tobytes())
    plain.save(few, "PNG", optimize=True, pnginfo=texts, dpi=picture.info["dpi"])
    return few.getvalue()


def on_scale(place: float) -> str:
    """The colour at a place from 0 to 1 of matplotlib's viridis, for ordered items such as layers."""
    return to_hex(matplotlib.colormaps["viridis"](place))


def tint(color: str, share: float) -> str:
    """The colour mixed with white, for variants of one method: 0 is the colour itself, 1 white."""
    return to_hex([level + share * (1 - level) for level in to_rgb(color)])


def readable(color: str) -> str:
    """The colour, darkened until text in it is readable on white; lines keep the colour itself."""
    levels = np.array(to_rgb(color))
    luminance = levels**2.2 @ (0.2126, 0.7152, 0.0722)
    return to_hex(levels * (LIGHTEST / max(LIGHTEST, luminance)) ** (1 / 2.2))


def colors_of(
    rows: Sequence[tuple[str, ...]], methods: Mapping[str, str] | None = None
) -> dict[tuple[str, ...], str]:
    """The colour of each row: its method's, in tints where several are variants of one; else of a scale.

    `methods`: the method of which a row is a variant, by the row's first choice. The darkest of a method's
    rows is that of its own name, then they become paler in the order of `methods`.
    """
    given, found = methods or {}, {}
    looks = {row: NAMED.get(given.get(row[0], row[0])) for row in rows}
    order = list(given)
    darkest_first = sorted(rows, key=lambda row: order.index(row[0]) if row[0] in given else -1)
    for look, variants in grouped(filter(looks.get, darkest_first), looks.get).items():
        for number, row in enumerate(variants):
            found[row] = tint(look.color, PALEST * number / max(1, len(variants) - 1))
    others = [row for row in rows if row not in found]
    for number, row in enumerate(others):
        found[row] = on_scale(LAST_OF_SCALE * number / max(1, len(others) - 1))
    return found


def _positive(curves: Sequence[Curve]) -> list[Curve]:
    kept = []
    for curve in curves:
        shown = [i for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)) if x > 0 and y > 0]
        if shown:
            series = {name: getattr(curve, name) for name in ("x", "y", "low", "high")}
            kept.append(replace(curve, **{k: [s[i] for i in shown] for k, s in series.items() if s}))
    return kept


def _plain(value: float, _position: int = 0) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Those of ascending `places` whose logarithms are at least `gap` apart."""
    kept = list(places[:1])
    for place in places[1:]:
        if math.log(place / kept[-1]) >= gap:
            kept.append(place)
    return kept


def _log_axes(axis: Axes, curves: list[Curve], alike: list[Curve]) -> None:
    """`alike`: the curves that share the range of the y axis."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    places = sorted({x for curve in curves for x in curve.x})
    places = _apart(places, math.log(places[-1] / places[0]) / MOST_TICKS)
    axis.set_xticks(places, [_plain(x) for x in places], rotation=30 if len(places) > 4 else 0)
    axis.xaxis.set_minor_locator(NullLocator())
    values = [y for curve in alike for y in curve.y]
    # A panel whose values all lie within a factor of four would look like noise: give it a decade.
    low, high = min(values), max(values)
    middle, reach = math.sqrt(low * high), max(math.sqrt(high / low), 2.0) * 1.25
    axis.set_ylim(middle / reach, middle * reach)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(_plain))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _double_along(axis: Axes, curves: list[Curve]) -> None:
    places = sorted({x for curve in curves for x in curve.x})
    axis.set_xscale("log", base=2)
    axis.set_xticks(places, [_plain(x) for x in places])
    axis.xaxis.set_minor_locator(NullLocator())


def label_ends(axis: Axes, curves: list[Curve], log: bool) -> None:
    """Write each curve's name to the right of its end, moved where names would overlap, and dots to it."""
    curves = [curve for curve in curves if curve.label]
    if not curves:
        return
    bottom, top = axis.get_ylim()
    scale = math.log if log else float
    span = scale(top) - scale(bottom)
    last = [max(range(len(curve.x)), key=curve.x.__getitem__) for curve in curves]
    ends = sorted(((scale(c.y[last[i]]) - scale(bottom)) / span, i) for i, c in enumerate(curves))
    heights = _spaced([height for height, _ in ends])
    for (_, index), height in zip(ends, heights, strict=True):
        curve = curves[index]
        axis.annotate(
            curve.label,
            xy=(curve.x[last[index]], curve.y[last[index]]),
            xytext=(LABEL_PLACE, height),
            textcoords="axes fraction",
            color=readable(curve.color),
            fontsize=10,
            va="center",
            annotation_clip=False,
            **PLAIN,
            arrowprops={
                "arrowstyle": "-",
                "color": curve.color,
                "lw": 0.8,
                "linestyle": ":",
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 2,
            },
        )
    axis.set_ylim(bottom, top)


def _spaced(heights: Sequence[float]) -> list[float]:
    """`heights` (ascending) moved apart to `LABEL_GAP`, as little as possible in squares.

    Names that would overlap form a group around the mean of their places; all others stay where they are,
    as far as that is beside the panel.
    """
    groups: list[list[float]] = []  # where each name would have the first one of its group
    for number, height in enumerate(heights):
        groups.append([height - number * LABEL_GAP])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    firsts, last = [fmean(group) for group in groups for _ in group], 1 - LABEL_GAP * (len(heights) - 1)
    return [max(0, min(first, last)) + number * LABEL_GAP for number, first in enumerate(firsts)]
