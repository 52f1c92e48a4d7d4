"""Line plots for people: log axes where asked, curves named where they end, units on the axes."""

import io
import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lab.files import write_atomically

MOST_TICKS = 8  # named places of a logarithmic x axis
LARGEST_BUBBLE = 2500.0  # points squared
NOTE_LINE, NOTE_GAP = 0.16, 0.14  # inches for a line of the note, and around it
LABEL_STEP = 13.0  # points between two names of bubbles
COLORS = 48  # of a picture
LABEL_GAP = 0.055  # smallest distance of two labels, as a part of the panel's height


@dataclass(frozen=True)
class Curve:
    """One line, its name written at its end unless empty; `style` is matplotlib's line style."""

    label: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"


@dataclass(frozen=True)
class Bubble:
    """A method at a point; `area` in any unit that grows with it, 0 for nothing."""

    label: str
    color: str
    x: float
    y: float
    area: float


Panel = tuple[str, str, str, list[Curve]]


def plot_curves(
    path: Path,
    panels: Sequence[Panel],
    *,
    note: str,
    columns: int | None = None,
    log: bool = True,
    markers: bool = True,
    source: str = "",
) -> None:
    """Write a PNG with the panels `(title, x label, y unit, curves)`, row after row.

    Args:
        path: the PNG, written in one piece.
        panels: panels without curves stay empty, with their title.
        note: printed below: what was measured, where, when.
        columns: panels side by side, of which their number is a multiple; default: all. With logarithmic
            axes, those below each other share the range of their y axis.
        log: logarithmic axes, which have no place for points that are not positive: they are left out.
        markers: a dot at every point.
        source: what the picture was drawn from, kept in its "Source" field.
    """
    columns = columns or len(panels)
    if log:
        panels = [(*texts, _positive(curves)) for *texts, curves in panels]
    figure = draw_curves(panels, columns, log, markers)
    save_figure(figure, path, note, source)


def draw_curves(panels: Sequence[Panel], columns: int, log: bool, markers: bool) -> Figure:
    """The panels of `plot_curves`, which explains the arguments, as a figure of matplotlib's."""
    rows = len(panels) // columns
    figure, axes = plt.subplots(rows, columns, figsize=(5.2 * columns, 4.6 * rows), squeeze=False)
    for place, (axis, (title, x_label, y_label, curves)) in enumerate(zip(axes.flat, panels, strict=True)):
        axis.set_title(title, loc="left", fontsize=12)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, color="0.92")
        for curve in curves:
            marker = "o" if markers else ""
            axis.plot(curve.x, curve.y, curve.style, color=curve.color, marker=marker, ms=4, lw=1.8)
        if log and curves:
            _log_axes(axis, curves, [c for *_, below in panels[place % columns :: columns] for c in below])
        label_ends(axis, curves, log)
    return figure


def plot_bubbles(
    path: Path,
    bubbles: Sequence[Bubble],
    *,
    title: str,
    x_label: str,
    y_label: str,
    note: str,
    inverted: bool = False,
) -> None:
    """Write a PNG with a named disc per method, x logarithmic; arguments as for `plot_curves`.

    `inverted`: y falls upwards, for figures of which less is better.
    """
    figure, axis = plt.subplots(figsize=(8.0, 5.6))
    axis.set_title(title, loc="left", fontsize=12)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, color="0.92")
    axis.set_xscale("log")
    axis.margins(0.15)
    axis.set_axisbelow(True)
    if inverted:
        axis.invert_yaxis()
    largest = max(bubble.area for bubble in bubbles)
    for bubble in sorted(bubbles, key=lambda b: -b.area):
        size = LARGEST_BUBBLE * bubble.area / largest if largest else 0.0
        axis.scatter(bubble.x, bubble.y, s=size, color=bubble.color, alpha=0.45, linewidths=0)
        axis.plot(bubble.x, bubble.y, ".", color=bubble.color)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(_plain))
    axis.xaxis.set_minor_formatter(NullFormatter())
    _label_bubbles(axis, bubbles)
    save_figure(figure, path, note)


def _label_bubbles(axis: Axes, bubbles: Sequence[Bubble]) -> None:
    """Each name where it covers no other: beside its point, or further up or down with a line to it."""
    axis.figure.draw_without_rendering()  # the limits of the axes decide where names are
    renderer = axis.figure.canvas.get_renderer()
    taken: list[Bbox] = []
    for bubble in sorted(bubbles, key=lambda b: (b.y, b.x)):
        text = None
        for steps, side in itertools.product(range(12), (1, -1)):
            if text is not None:
                text.remove()
            height = 4 + LABEL_STEP * ((steps + 1) // 2) * (-1) ** steps
            text = axis.annotate(
                bubble.label,
                (bubble.x, bubble.y),
                xytext=(6 * side, height),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                color=bubble.color,
                fontsize=9,
                arrowprops={"arrowstyle": "-", "color": bubble.color, "lw": 0.6} if steps > 2 else None,
            )
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # without the line
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


def save_figure(figure: Figure, path: Path, note: str, source: str = "") -> None:
    """Write the figure with `note` below its panels."""
    lines = textwrap.wrap(note, int(15 * figure.get_figwidth()))
    below = (NOTE_LINE * len(lines) + NOTE_GAP) / figure.get_figheight()
    figure.text(0.01, 0.01, "\n".join(lines), fontsize=8, color="0.35", va="bottom")
    figure.tight_layout(rect=(0, below, 1, 1))
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata={"Source": source})
    plt.close(figure)
    write_atomically(path, with_palette(picture.getvalue()))


def with_palette(png: bytes) -> bytes:
    """The picture in `COLORS` colours, a third of the bytes; its texts stay."""
    picture, few, texts = Image.open(io.BytesIO(png)), io.BytesIO(), PngInfo()
    for key, text in picture.text.items():
        texts.add_text(key, text)
    plain = picture.convert("RGB").quantize(COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    plain.save(few, "PNG", optimize=True, pnginfo=texts, dpi=picture.info["dpi"])
    return few.getvalue()


def _positive(curves: Sequence[Curve]) -> list[Curve]:
    kept = []
    for curve in curves:
        points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if x > 0 and y > 0]
        if points:
            x, y = zip(*points, strict=True)
            kept.append(replace(curve, x=x, y=y))
    return kept


def _plain(value: float, _position: int = 0) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _log_axes(axis: Axes, curves: list[Curve], column: list[Curve]) -> None:
    """`column`: the curves that share the range of the y axis."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    places = sorted({x for curve in curves for x in curve.x})
    places = places[:: math.ceil(len(places) / MOST_TICKS)]
    axis.set_xticks(places, [_plain(x) for x in places], rotation=30 if len(places) > 4 else 0)
    axis.xaxis.set_minor_locator(NullLocator())
    values = [y for curve in column for y in curve.y]
    # A panel whose values all lie within a factor of four would look like noise: give it a decade.
    low, high = min(values), max(values)
    middle, reach = math.sqrt(low * high), max(math.sqrt(high / low), 2.0) * 1.25
    axis.set_ylim(middle / reach, middle * reach)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(_plain))
    axis.yaxis.set_minor_formatter(NullFormatter())


def label_ends(axis: Axes, curves: list[Curve], log: bool) -> None:
    """Write each curve's name to the right of its end, moved where names would overlap."""
    curves = [curve for curve in curves if curve.label]
    if not curves:
        return
    bottom, top = axis.get_ylim()
    scale = math.log if log else float
    span = scale(top) - scale(bottom)
    ends = sorted(((scale(c.y[-1]) - scale(bottom)) / span, i) for i, c in enumerate(curves))
    heights = _spaced([height for height, _ in ends])
    for (_, index), height in zip(ends, heights, strict=True):
        curve = curves[index]
        axis.annotate(
            curve.label,
            xy=(1.0, height),
            xycoords="axes fraction",
            xytext=(5, 0),
            textcoords="offset points",
            color=curve.color,
            fontsize=10,
            va="center",
            annotation_clip=False,
        )


def _spaced(heights: list[float]) -> list[float]:
    """`heights` (ascending) moved apart to `LABEL_GAP`, their centre kept if the lowest stays above zero."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + LABEL_GAP) if placed else height)
    shift = min((sum(placed) - sum(heights)) / len(heights), placed[0] - LABEL_GAP / 2)
    return [height - shift for height in placed]
