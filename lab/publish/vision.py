"""Exponents of LLN in Vision Transformers, and accuracy against fixed ones."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from lab.methods import ATTENTIONS
from lab.publish.plots import LAST_OF_SCALE, Curve, Panel, on_scale, plot_curves, tint
from lab.publish.tables import Section, drawn_from, grouped, markdown_table, note_of_seed, of_first_seed
from lab.store import Record

RANGE, GREY = (2.0, 2.2), "#777777"
LLN, FIXED = "lln_diag", "lln_diag_alpha"
AUTHORS_FORM, AUTHORS = "lln_diag_authors", 0.5  # the share of white in its colour
SAME = {"t1": "transnormer_t1", "t2": "transnormer_t2", AUTHORS_FORM: LLN}
"""The mechanisms whose colours choices of another name have."""


def by_method(section: Section, records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each method, in the order of the YAML."""
    found = grouped(records, lambda record: record["cell"]["method"])
    return {name: found[name] for name in section.choices["method"] if name in found}


def exponent_of(section: Section, method: str) -> float | None:
    """The fixed alpha = beta of a method; None for the others."""
    return section.choices["method"][method].settings.get(FIXED)


def label_of(section: Section, method: str) -> str:
    """What a reader sees."""
    return section.choices["method"][method].label


def matched(section: Section, records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records with exponents by moment matching, by method."""
    return {
        name: found
        for name, group in by_method(section, section.records).items()
        if exponent_of(section, name) is None
        and (found := [record for record in group if record["found"]["exponents"]])
    }


def tables(section: Section) -> list[str]:
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
        title = f"**Figure 9: exponents of {label_of(section, name)} in training, lowest to highest**"
        found.append(f"{title}\n\n" + markdown_table(["", "α", "β"], rows))
    return found


def layers_of(record: Record) -> list[str]:
    """The layers whose exponents a record has."""
    return list(dict.fromkeys(key.partition("/")[2] for key in record["found"]["exponents"]))


def draw_accuracy(section: Section, source: str, path: Path) -> None:
    """Accuracy on valid over the updates, a line for each attention."""
    first = of_first_seed(section.records)
    curves = [
        learning_curve(section, name, group[0]["training"]["curves"]["valid_accuracy"])
        for name, group in by_method(section, first).items()
        if exponent_of(section, name) is None and group[0]["training"]["curves"].get("valid_accuracy")
    ]
    panels: list[Panel] = [("", "updates", "right on valid, %", curves)]
    asks = "Which attention learns to classify the images, and how fast?"
    plot_curves(path, panels, asks=asks, note=note_of_seed(first), log=False, source=source)


def learning_curve(section: Section, method: str, points: Sequence[Sequence[float]]) -> Curve:
    """Accuracy on valid over the updates."""
    x, y = zip(*points, strict=True)
    color = ATTENTIONS[SAME.get(method, method)].color
    return Curve(label_of(section, method), tint(color, AUTHORS) if method == AUTHORS_FORM else color, x, y)


def draw_exponents(section: Section, source: str, path: Path) -> None:
    """Alpha and beta of each layer over the updates, a row for each form of moment matching (Figure 9)."""
    first, panels = of_first_seed(section.records), []
    for name, group in matched(section, first).items():
        for exponent, symbol in (("alpha", "α"), ("beta", "β")):
            curves = [*exponent_curves(group[0], exponent), *bounds(group[0])]
            unit = f"{symbol} of a layer, mean over heads"
            panels.append((label_of(section, name), "updates", unit, curves))
    asks = "Do the exponents of LLN stay within 2 to 2.2 in training, as in Figure 9?"
    note = note_of_seed(first)
    plot_curves(path, panels, asks=asks, columns=2, note=note, log=False, markers=False, source=source)


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
    return [Curve(f"paper: {value:g}", GREY, ends, (value, value), ":") for value in RANGE]


def draw_fixed(section: Section, source: str, path: Path) -> None:
    """Median accuracy by fixed alpha = beta, beside moment matching (Figure 10a)."""
    accuracy = {
        name: statistics.median(record["found"]["accuracy"] for record in group)
        for name, group in by_method(section, section.records).items()
    }
    fixed = sorted((value, accuracy[name]) for name in accuracy if (value := exponent_of(section, name)))
    look, curves = ATTENTIONS[LLN], []
    if fixed:
        x, y = zip(*fixed, strict=True)
        curves.append(Curve(f"{look.label}, fixed", look.color, x, y))
        if LLN in accuracy:
            curves.append(Curve("matched", tint(look.color, AUTHORS), (x[0], x[-1]), [accuracy[LLN]] * 2))
    split = section.records[0]["found"]["split"]
    panels: list[Panel] = [("", "α = β", f"right on {split}, %, median over the seeds", curves)]
    asks = "Does accuracy fall for fixed exponents below 2, and only there, as in Figure 10a?"
    plot_curves(path, panels, asks=asks, note=drawn_from(section.records), log=False, source=source)


PICTURES = {"accuracy": draw_accuracy, "exponents": draw_exponents, "fixed": draw_fixed}
