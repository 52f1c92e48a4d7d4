"""The results of Vision Transformers as a table and as curves."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from pipeline.files import fingerprint
from pipeline.methods import ATTENTIONS, Method
from pipeline.papers import read_table
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.sweeps import (
    LOADED,
    Result,
    by_method,
    first_seed_on,
    measured_on,
    of_first_seed,
    over_seeds,
    read_sweep,
    with_flags,
)
from pipeline.reports.tables import markdown_table, spread
from pipeline.sequence_methods import VIT_METHODS

LLN = "lln_diag"
DASHED = "linformer"  # its colour is TransNormer T2's, too
DIFFERENCES = {
    "digits": "other images (8 x 8 in grey, one pixel per patch), a smaller model and 20 epochs",
    "cifar10": "other images (32 x 32, patches of 4), a smaller model and fewer epochs",
    "dogs_vs_cats": "patch, rate, batch and crops as in the authors' code, since the paper does not state "
    "them, float32, and a split of our own into training and held-out images",
}


def read_results(folder: Path) -> list[Result]:
    """The finished runs of scripts/measure_vit.sh in `folder`, in the order of the tables.

    Raises UserError if they differ in preset or flags.
    """
    names = list(VIT_METHODS)
    return read_sweep(folder, lambda r: (names.index(base_of(r)), r["alpha"] or 0, r["seed"]))


def base_of(result: Result) -> str:
    """The name in `VIT_METHODS`, whatever its exponents."""
    return result["method"].partition("-")[0]


def label_of(result: Result) -> str:
    """What a reader sees."""
    label = VIT_METHODS[base_of(result)].label
    return label if result["alpha"] is None else f"{label}, α = β = {result['alpha']:g}"


def write_vit_table(results: Sequence[Result]) -> str:
    """Accuracy by attention, median (range) over the seeds, beside the paper's; alpha and beta; notes."""
    paper = {row["method"].casefold(): row["accuracy"] for row in read_table("lln_03_vit")}
    has_scale = any(result["smallest_loss_scale"] for result in results)
    header = ["", "accuracy, %", "paper: Dogs vs Cats, %", "parameters", "gradient norm, median"]
    header += ["largest 1 / loss scale"] * has_scale + ["training, s"]
    rows = []
    for group in by_method(results).values():
        first, scales = group[0], [1 / r["smallest_loss_scale"] for r in group if r["smallest_loss_scale"]]
        published = paper.get(VIT_METHODS[base_of(first)].label.casefold(), "–")
        rows.append(
            [
                label_of(first),
                spread([r["accuracy"] for r in group], "{:.1f}"),
                published if first["alpha"] is None else "–",
                f"{first['parameters']:,}",
                spread([r["gradient_norm"] for r in group]),
                *([spread(scales, "{:.1e}") if scales else "–"] if has_scale else []),
                spread([r["train_seconds"] for r in group], "{:.0f}"),
            ]
        )
    parts = [markdown_table(header, rows), exponents_table(results), "\n".join(notes(results))]
    return "\n\n".join(filter(None, parts))


def exponents_table(results: Sequence[Result]) -> str:
    """Lowest and highest alpha and beta of each layer in training (Figure 9), over the seeds."""
    matched = [r for r in results if r["method"] == LLN and r["exponents"]]
    if not matched:
        return ""
    layers = list(dict.fromkeys(key.partition("/")[2] for key in matched[0]["exponents"]))
    rows = []
    for layer in layers:
        cells = []
        for name in ("alpha", "beta"):
            values = [value for r in matched for _, value in r["exponents"].get(f"{name}/{layer}", [])]
            cells.append(f"{min(values):.2f} to {max(values):.2f}")
        rows.append([layer.replace("layer", "layer "), *cells])
    title = "Exponents of LLN+Diag in training, lowest to highest (the paper's Figure 9):"
    return f"{title}\n\n" + markdown_table(["", "α", "β"], rows)


def notes(results: Sequence[Result]) -> list[str]:
    """What decides the figures, and how they differ from the paper's."""
    first = results[0]
    model = first["settings"]["model"]
    unverified = " (NOT the original files)" if first["original_files"] is False else ""
    updates = sorted({r["updates"] for r in results})
    patch = f"patches of {model['patch_size']}, " if "patch_size" in model else ""
    return [
        f"Preset {first['preset']}{with_flags(first['flags'])}: {first['corpus']}{unverified}, "
        f"{first['training_images']:,} training images, {first['architecture']}, {patch}"
        f"{', '.join(f'{n:,}' for n in updates)} updates of {first['settings']['dataset']['batch_size']}; "
        f"{first['examples']:,} images of {first['split']}, last checkpoint; "
        f"{over_seeds(results)}.",
        f"Differences from the paper (Nahshan et al. 2024, Table 3): {DIFFERENCES[first['preset']]}.",
        measured_on(results, LOADED),
    ]


def plot_vit(results: Sequence[Result], path: Path) -> None:
    """Accuracy on valid, LLN's exponents, and accuracy against fixed exponents, of what there is."""
    one = of_first_seed(results)
    preset = results[0]["preset"]
    valid = [_valid(r) for r in one if r["alpha"] is None and r["valid_accuracy"]]
    panels = [(f"Accuracy, {preset}", "updates", "right on valid, %", valid)]
    if exponents := [curve for r in one if r["method"] == LLN for curve in _exponents(r)]:
        panels.append(("Exponents of LLN+Diag (Figure 9)", "updates", "α (solid), β (dashed)", exponents))
    if fixed := _fixed(results):
        split = results[0]["split"]
        panels.append(("Fixed exponents (Figure 10a)", "α = β", f"right on {split}, %", [fixed]))
    note = f"Curves over updates show one run each. {first_seed_on(results)}"
    plot_curves(path, panels, note=note, log=False, source=fingerprint(results))


def _valid(result: Result) -> Curve:
    """Accuracy on valid over the updates."""
    dashed = result["method"] == DASHED
    label = label_of(result) + " (dashed)" * dashed
    return _curve(label, VIT_METHODS[base_of(result)], result["valid_accuracy"], "--" if dashed else "-")


def _curve(label: str, method: Method, points: Sequence[Sequence[float]], style: str = "-") -> Curve:
    x, y = zip(*points, strict=True)
    return Curve(label, method.color, x, y, style)


def _exponents(result: Result) -> list[Curve]:
    """Alpha and beta of each layer; the lines of the first and of the last layer have their names."""
    found = {key: points for key, points in result["exponents"].items() if points}
    layers = list(dict.fromkeys(key.partition("/")[2] for key in found))
    curves = []
    for key, points in found.items():
        name, _, layer = key.partition("/")
        label = f"{'α' if name == 'alpha' else 'β'}, {layer}" if layer in (layers[0], layers[-1]) else ""
        method = ATTENTIONS[LLN if name == "alpha" else "lln"]
        curves.append(_curve(label, method, points, "-" if name == "alpha" else "--"))
    return curves


def _fixed(results: Sequence[Result]) -> Curve | None:
    """Median accuracy by fixed alpha = beta."""
    groups = [group for group in by_method(results).values() if group[0]["alpha"] is not None]
    points = [(group[0]["alpha"], statistics.median(r["accuracy"] for r in group)) for group in groups]
    return _curve("LLN+Diag", VIT_METHODS[LLN], points) if points else None
