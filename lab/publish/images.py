"""Models of images: LLN's exponents in Vision Transformers, and images by models of pixels."""

import statistics
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from lab.methods import ATTENTIONS
from lab.publish.plots import (
    GREY,
    LAST_OF_SCALE,
    Curve,
    Panel,
    level_line,
    on_scale,
    plot_curves,
    save_figure,
    tint,
)
from lab.publish.tables import (
    Extras,
    RecordGroup,
    drawn_from,
    finite,
    grouped,
    markdown_table,
    note_of_seed,
    of_first_seed,
    over_seeds,
    seed_of,
)
from lab.store import Record

RANGE = (2.0, 2.2)
LLN, FIXED = "lln_diag", "lln_diag_alpha"
AUTHORS_FORM, AUTHORS = "lln_diag_authors", 0.5  # the share of white in its colour
ONE_RATE = 0.35  # the share of white in the colour of exponents whose learning rate was not tuned
SAME = {"t1": "transnormer_t1", "t2": "transnormer_t2", AUTHORS_FORM: LLN}
"""The mechanisms whose colours choices with other names share."""


def by_method(section: RecordGroup, records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each method, in the order of the YAML."""
    found = grouped(records, lambda record: record["cell"]["method"])
    return {name: found[name] for name in section.choices["method"] if name in found}


def exponent_of(section: RecordGroup, method: str) -> float | None:
    """The fixed alpha = beta of a method; None for the others."""
    return section.choices["method"][method].settings.get(FIXED)


def choice_label(section: RecordGroup, method: str) -> str:
    """The label that a reader sees."""
    return section.choices["method"][method].label


def matched(section: RecordGroup, records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records with exponents by moment matching, by method."""
    return {
        name: found
        for name, group in by_method(section, records).items()
        if exponent_of(section, name) is None
        and (found := [record for record in group if record["found"]["exponents"]])
    }


def exponent_tables(section: RecordGroup) -> list[str]:
    """Lowest and highest alpha and beta of each layer in training, over the seeds (Figure 9)."""
    found = []
    for name, group in matched(section, section.records).items():
        rows = []
        for number, layer in enumerate(layers_of(group[0]), 1):
            cells = []
            for exponent in ("alpha", "beta"):
                curves = [record["found"]["exponents"].get(f"{exponent}/{layer}", []) for record in group]
                values = [value for curve in curves for _, value in curve]
                cells.append(f"{min(values):.2f} to {max(values):.2f}")
            rows.append([f"layer {number}", *cells])
        title = f"**Figure 9: exponents of {choice_label(section, name)} in training, lowest to highest**"
        found.append(f"{title}\n\n" + markdown_table(["", "α", "β"], rows))
    return found


def layers_of(record: Record) -> list[str]:
    """The layers whose exponents a record has."""
    return list(dict.fromkeys(key.partition("/")[2] for key in record["found"]["exponents"]))


def draw_accuracy(section: RecordGroup, source: str, path: Path) -> None:
    """Accuracy on valid over the updates, a line for each attention."""
    first = of_first_seed(section.records)
    curves = [learning_curve(section, name, points) for name, points in accuracies(section).items()]
    panels: list[Panel] = [("", "updates", "accuracy on valid, %", curves)]
    asks = "Which attention learns to classify the images, and how fast?"
    plot_curves(path, panels, asks=asks, note=note_of_seed(first), log=False, source=source)


def accuracies(section: RecordGroup) -> dict[str, list[tuple[float, float]]]:
    """Accuracy on valid of the first seed, by method, without fixed exponents."""
    curves = {
        name: finite(group[0]["training"]["curves"].get("valid_accuracy", []))
        for name, group in by_method(section, of_first_seed(section.records)).items()
        if exponent_of(section, name) is None
    }
    return {name: points for name, points in curves.items() if points}


def learning_curve(section: RecordGroup, method: str, points: Sequence[Sequence[float]]) -> Curve:
    """Accuracy on valid over the updates."""
    x, y = zip(*points, strict=True)
    look = ATTENTIONS.get(SAME.get(method, method))
    color = look.color if look else GREY
    if method == AUTHORS_FORM:
        color = tint(color, AUTHORS)
    return Curve(choice_label(section, method), color, x, y)


def draw_exponents(section: RecordGroup, source: str, path: Path) -> None:
    """Alpha and beta of each layer over the updates, a row for each form of moment matching (Figure 9)."""
    first, panels = of_first_seed(section.records), []
    for name, group in matched(section, first).items():
        for exponent, symbol in (("alpha", "α"), ("beta", "β")):
            curves = [*exponent_curves(group[0], exponent), *bounds(group[0])]
            unit = f"{symbol} of a layer, mean over heads"
            panels.append((choice_label(section, name), "updates", unit, curves))
    asks = "Do the exponents of LLN stay within 2 to 2.2 in training, as in Figure 9?"
    note = note_of_seed(first)
    plot_curves(path, panels, asks=asks, note=note, log=False, markers=False, source=source)


def fixed_exponents(section: RecordGroup) -> list[tuple[float, str]]:
    """The fixed values of alpha = beta in ascending order, each with its method."""
    methods = by_method(section, section.records)
    return sorted((value, name) for name in methods if (value := exponent_of(section, name)))


def exponent_curves(record: Record, exponent: str) -> list[Curve]:
    """An exponent in each layer, from dark to light."""
    layers, curves = layers_of(record), []
    for number, layer in enumerate(layers):
        if points := record["found"]["exponents"].get(f"{exponent}/{layer}"):
            x, y = zip(*points, strict=True)
            color = on_scale(LAST_OF_SCALE * number / max(1, len(layers) - 1))
            curves.append(Curve(f"layer {number + 1}", color, x, y))
    return curves


def bounds(record: Record) -> list[Curve]:
    """The ends of the paper's range, as lines across the panel."""
    ends = (0, record["training"]["updates"])
    return [level_line(f"paper: {value:g}", ends, value) for value in RANGE]


def draw_fixed(section: RecordGroup, source: str, path: Path) -> None:
    """Median and range of accuracy by fixed alpha = beta, beside moment matching (Figure 10a)."""
    methods, look, fixed = by_method(section, section.records), ATTENTIONS[LLN], fixed_exponents(section)
    curves, notes = [], []
    parts = grouped(fixed, lambda pair: "tuned" in methods[pair[1]][0])
    for tuned, pairs in sorted(parts.items()):
        x, names = zip(*pairs, strict=True)
        label, color = f"{look.label}, fixed", look.color
        if len(parts) > 1:
            label = f"fixed, {'each its best rate' if tuned else 'one rate for all'}"
            color = color if tuned else tint(color, ONE_RATE)
        curves.append(banded(label, color, x, [accuracies_of(methods[name]) for name in names]))
        notes.append(f"{label}: {over_seeds([one for name in names for one in methods[name]])}")
    if LLN in methods:
        ends = (fixed[0][0], fixed[-1][0])
        values = [accuracies_of(methods[LLN])] * 2
        curves.append(banded("matched", tint(look.color, AUTHORS), ends, values, "--"))
        notes.append(f"matched: {over_seeds(methods[LLN])}")
    split = section.records[0]["found"]["split"]
    panels: list[Panel] = [("", "α = β", f"accuracy on {split}, %", curves)]
    asks = "Does accuracy fall for fixed exponents below 2, and only there, as in Figure 10a?"
    note = f"Accuracy, {'; '.join(notes)}; {drawn_from(section.records)}"
    plot_curves(path, panels, asks=asks, note=note, log=False, source=source)


def accuracies_of(records: Sequence[Record]) -> list[float]:
    """The accuracy of each record, in percent."""
    return [record["found"]["accuracy"] for record in records]


def banded(
    label: str, color: str, x: Sequence[float], values: Sequence[Sequence[float]], style: str = "-"
) -> Curve:
    """The medians of some `values` at each x, and their range as a band."""
    middle, low, high = ([f(ones) for ones in values] for f in (statistics.median, min, max))
    return Curve(label, color, x, middle, style, low, high)


WAYS = {"drawn": "drawn", "completed": "upper half given"}
TRUE = "test images"
ASKS = "What do the images look like that each model draws from nothing, or completes from the upper half?"


def draw_samples(section: RecordGroup, source: str, path: Path) -> None:
    """Images that each attention draws and completes, a row per attention: the first seed."""
    seed = seed_of(of_first_seed(section.records)[0])
    rows = {label: [one for one in group if seed_of(one) == seed] for label, group in section.rows.items()}
    shown = {label: group[0] for label, group in rows.items() if group}
    figure, axes = plt.subplots(len(shown) + 1, 2, figsize=(11, 0.55 * len(shown) + 1.3), squeeze=False)
    first = next(iter(shown.values()))
    show_row(axes[0, 1], first, TRUE, TRUE)
    axes[0, 0].axis("off")
    for row, (label, record) in zip(axes[1:], shown.items(), strict=True):
        for axis, way in zip(row, WAYS, strict=True):
            show_row(axis, record, way, label if axis is row[0] else "")
    for axis, title in zip(axes[1], WAYS.values(), strict=True):
        axis.set_title(title, loc="left", fontsize=11)
    save_figure(figure, path, ASKS, note_of_seed(list(shown.values())), source)


def show_row(axis: Axes, record: Record, which: str, label: str) -> None:
    """The images of a record side by side, a gap between them."""
    height, width, channels = (record["data"][name] for name in ("height", "width", "channels"))
    levels = np.frombuffer(b64decode(record["found"]["pictures"][which]), np.uint8)
    images = levels.reshape(-1, height, width, channels) / (record["data"]["levels"] - 1)
    gap = np.ones((len(images), height, 1 + width // 16, channels))
    strip = np.concatenate([images, gap], 2).transpose(1, 0, 2, 3).reshape(height, -1, channels)
    axis.imshow(strip.squeeze(-1) if channels == 1 else strip, cmap="gray", vmin=0, vmax=1)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    axis.set_ylabel(label, rotation=0, ha="right", va="center")


EXTRAS = {
    "image_classification": Extras(
        exponent_tables,
        {"accuracy": draw_accuracy, "exponents": draw_exponents, "fixed": draw_fixed},
        {
            "accuracy": accuracies,
            "exponents": lambda section: matched(section, of_first_seed(section.records)),
            "fixed": fixed_exponents,
        },
    ),
    "pixels": Extras(pictures={"samples": draw_samples}),
}
