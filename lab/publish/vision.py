"""Exponents of LLN in Vision Transformers, and accuracy against fixed ones."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from lab.methods import ATTENTIONS, COLORS
from lab.publish.plots import Curve, Panel, plot_curves
from lab.publish.tables import Section, grouped, markdown_table, measured_on, of_first_seed, seed_of
from lab.store import Record

LLN, FIXED = "lln_diag", "lln_diag_alpha"
COLORED = {"t1": "transnormer_t1", "t2": "transnormer_t2", "lln_diag_authors": "lln"}
DASHED = "linformer"  # its colour is also TransNormer T2's


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
        for name, group in by_method(section, records).items()
        if exponent_of(section, name) is None
        and (found := [record for record in group if record["found"]["exponents"]])
    }


def tables(section: Section) -> list[str]:
    """Lowest and highest alpha and beta of each layer in training, over the seeds (Figure 9)."""
    found = []
    for name, group in matched(section, section.records).items():
        rows = []
        for layer in layers_of(group[0]):
            cells = []
            for exponent in ("alpha", "beta"):
                curves = [record["found"]["exponents"].get(f"{exponent}/{layer}", []) for record in group]
                values = [value for curve in curves for _, value in curve]
                cells.append(f"{min(values):.2f} to {max(values):.2f}")
            rows.append([layer.replace("layer", "layer "), *cells])
        title = f"**Figure 9: exponents of {label_of(section, name)} in training, lowest to highest**"
        found.append(f"{title}\n\n" + markdown_table(["", "α", "β"], rows))
    return found


def layers_of(record: Record) -> list[str]:
    """The layers whose exponents a record has."""
    return list(dict.fromkeys(key.partition("/")[2] for key in record["found"]["exponents"]))


def draw_accuracy(section: Section, source: str, path: Path) -> None:
    """Accuracy on valid, LLN's exponents, and accuracy against fixed exponents, as far as measured."""
    records = section.records
    first = of_first_seed(records)
    learning = [
        learning_curve(section, name, group[0]["training"]["curves"]["valid_accuracy"])
        for name, group in by_method(section, first).items()
        if exponent_of(section, name) is None and group[0]["training"]["curves"].get("valid_accuracy")
    ]
    panels: list[Panel] = [
        (f"Accuracy, {records[0]['cell']['preset']}", "updates", "right on valid, %", learning)
    ]
    for name, group in matched(section, first).items():
        title = f"Exponents of {label_of(section, name)} (Figure 9)"
        panels.append((title, "updates", "α (solid), β (dashed)", exponent_curves(group[0])))
    if fixed := fixed_curve(section, records):
        split = records[0]["found"]["split"]
        panels.append(("Fixed exponents (Figure 10a)", "α = β", f"right on {split}, %", [fixed]))
    note = f"Curves over updates show seed {seed_of(first[0])}. {measured_on(records)}"
    plot_curves(path, panels, note=note, log=False, source=source)


def learning_curve(section: Section, method: str, points: Sequence[Sequence[float]]) -> Curve:
    """Accuracy on valid over the updates."""
    x, y = zip(*points, strict=True)
    dashed = method == DASHED
    known = ATTENTIONS.get(COLORED.get(method, method))
    color = known.color if known else COLORS[0]
    return Curve(label_of(section, method) + " (dashed)" * dashed, color, x, y, "--" if dashed else "-")


def exponent_curves(record: Record) -> list[Curve]:
    """Alpha and beta of each layer; the lines of the first and of the last layer have their names."""
    layers, curves = layers_of(record), []
    for key, points in record["found"]["exponents"].items():
        if points:
            name, _, layer = key.partition("/")
            label = f"{'α' if name == 'alpha' else 'β'}, {layer}" if layer in (layers[0], layers[-1]) else ""
            color = ATTENTIONS[LLN if name == "alpha" else "lln"].color
            x, y = zip(*points, strict=True)
            curves.append(Curve(label, color, x, y, "-" if name == "alpha" else "--"))
    return curves


def fixed_curve(section: Section, records: Sequence[Record]) -> Curve | None:
    """Median accuracy by fixed alpha = beta."""
    points = [
        (exponent, statistics.median(record["found"]["accuracy"] for record in group))
        for name, group in by_method(section, records).items()
        if (exponent := exponent_of(section, name)) is not None
    ]
    if not points:
        return None
    x, y = zip(*sorted(points), strict=True)
    return Curve(ATTENTIONS[LLN].label, ATTENTIONS[LLN].color, x, y)


PICTURES = {"accuracy": draw_accuracy}
