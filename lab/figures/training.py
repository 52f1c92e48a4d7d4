"""LLN's Fig. 1 and 9: concentration and exponents over the checkpoints of runs (`figures training`)."""

import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn

from lab.data.prepared import PreparedData
from lab.errors import UserError
from lab.figures.figure import Content, Figure, chosen, write_once
from lab.figures.measures import ENCODERS, LANGUAGE_MODELS, MEASURES, Measured, measure
from lab.figures.models import (
    inputs,
    is_masked_lm,
    load,
    mark_of,
    model_label,
    open_split,
    run_name,
    sequences,
    training_of,
)
from lab.files import sha256_of, shown_path
from lab.papers import statement
from lab.run.checkpoint import Checkpoint, read_checkpoint
from user_dir.analysis.capture import attentions
from user_dir.attention.diag import DiagAttention
from user_dir.attention.lln import LLNAttention
from user_dir.attention.lln_diag import LLNDiagAttention

# σ_q = σ_k for which moment matching is within 20 %, by head width (measured at N = 512).
MATCHED = {48: [(0.6, 1.65)], 64: [(0.57, 1.45)], 128: [(0.53, 0.67), (0.91, 1.29)]}


@dataclass(frozen=True)
class CheckpointStatistics:
    """One checkpoint: its update and, layer by layer, quartiles of each measure and LLN's exponents."""

    update: int
    quartiles: list[dict[str, tuple[float, float, float]]]
    exponents: list[dict[str, float]]


def run_training(options: Namespace) -> None:
    """A figure for each run and, where it is LLN's, one of its exponents."""
    runs = {folder: checkpoints_of(folder) for folder in options.runs}
    data = open_split(options, [kept[-1][1] for kept in runs.values()])
    for folder, kept in runs.items():
        _write(folder, evenly_spaced(kept, options.checkpoints), data, options)


def _write(folder: Path, paths: list[tuple[int, Path]], data: PreparedData, options: Namespace) -> None:
    name = run_name(folder.absolute())
    settings = chosen(options, "split", "sequences", "length", "masked")
    kept = {path.name: sha256_of(path)[:12] for _, path in paths}
    settings |= {"corpus": mark_of(data), "run": name, "checkpoints": kept}
    last = load(paths[-1][1], data)
    length = options.length or last.tokens_per_sample

    @cache
    def points() -> list[CheckpointStatistics]:
        return _points(paths, last, data, options)

    write_once(options, name, settings, lambda: _concentration(points(), last, length))
    if any(isinstance(part, LLNAttention) for part in last.model.modules()):
        write_once(options, f"{name}-exponents", settings, lambda: _exponents(points(), last))


def checkpoints_of(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a run by update; UserError if the folder is missing or has fewer than two."""
    if not folder.is_dir():
        raise UserError(
            f"no run {shown_path(folder)}; name the folder of one, see scripts/study.sh analysis_runs"
        )
    found = {}
    for path in sorted(folder.glob("checkpoint_*_*.pt")):
        found[read_checkpoint(path).updates] = path.absolute()
    if len(found) < 2:
        raise UserError(
            f"{shown_path(folder)} keeps {len(found)} checkpoints of its training; train with "
            "--save-interval-updates N --keep-interval-updates -1"
        )
    return sorted(found.items())


def evenly_spaced(paths: list[tuple[int, Path]], most: int) -> list[tuple[int, Path]]:
    """At most `most` of the checkpoints, the last among them."""
    step = -(-len(paths) // most)
    return paths[::-1][::step][::-1]


def _points(
    paths: list[tuple[int, Path]], last: Checkpoint, data: PreparedData, options: Namespace
) -> list[CheckpointStatistics]:
    tokens = sequences(last, data, options)
    found = [_point(0, _untrained(last), tokens)]
    for update, path in paths:
        print(f"  update {update:,}", flush=True)
        found.append(_point(update, load(path, data).model, tokens))
    return found


def _untrained(last: Checkpoint) -> nn.Module:
    """The model before its first update: built again from its configuration and seed."""
    torch.manual_seed(last.config.common.seed)
    return last.task.build_model(last.config.model).eval()


def _point(update: int, model: nn.Module, tokens: torch.Tensor) -> CheckpointStatistics:
    found = [measure(given, singular_values=False) for given in inputs(model, tokens)]
    quartiles = [{key: one.quartiles(key) for key in MEASURES if key in one.numbers} for one in found]
    return CheckpointStatistics(update, quartiles, [_lln(one) for one in found])


def _lln(found: Measured) -> dict[str, float]:
    module = found.given.module
    if not isinstance(module, LLNAttention):
        return {}
    alpha, beta = (x.item() for x in module.scale.average())
    sigma_q, sigma_k = module.scale.sigma.tolist()
    least = math.sqrt(math.sqrt(-module.scale.b) / module.scale.a) if module.scale.b < 0 else 0.0
    sigmas = {"sigma_q": sigma_q, "sigma_k": sigma_k, "head_dim": module.head_dim}
    return {"alpha": alpha, "beta": beta, **sigmas, "least": least}


def _concentration(points: list[CheckpointStatistics], last: Checkpoint, length: int) -> Content:
    encoder = is_masked_lm(last)
    _, entropy, *_ = shown = ENCODERS if encoder else LANGUAGE_MODELS
    ending = ", an encoder" if encoder else ""
    figure = Figure(f"{model_label(last)} in training{ending}", training=training_of(last))
    x, layers = [point.update for point in points], range(len(points[0].quartiles))
    for key in shown:
        title, unit = MEASURES[key]
        panel = figure.lines(title, "updates", unit, y="log" if key == "temperature" else "linear")
        for layer in layers:
            found = [point.quartiles[layer].get(key) for point in points]
            if all(found):
                low, mean, high = zip(*found, strict=True)
                shade = layer / max(len(layers) - 1, 1)
                panel.curve(f"layer {layer + 1}", x, mean, shade=shade, low=low, high=high)
    _check_start(figure, [quartiles[entropy][1] for quartiles in points[0].quartiles], last, length)
    _check_moves(figure, points, shown)
    return figure.record(
        f"{model_label(last)}, N = {length}; mean and quartiles over sequences and heads. "
        "Update 0 is the model rebuilt from its configuration and seed."
    )


def _check_moves(figure: Figure, points: list[CheckpointStatistics], shown: Sequence[str]) -> None:
    """In how many layers temperature and entropy fall and the gap rises, as in LLN's Figure 1."""
    first, last = points[0].quartiles, points[-1].quartiles
    for key in shown:
        word = "rises" if key == "gap" else "falls"
        layers = [pair for pair in zip(first, last, strict=True) if all(one.get(key) for one in pair)]
        means = [(before[key][1], after[key][1]) for before, after in layers]
        moved = sum(after > before if word == "rises" else after < before for before, after in means)
        name, found = MEASURES[key][0].lower(), f"in {moved} of {len(means)}"
        if means:
            figure.check(
                f"{name} {word} in training", "in most layers, our bound", found, 2 * moved > len(means)
            )


def _check_start(figure: Figure, entropies: list[float], last: Checkpoint, length: int) -> None:
    """Whether attention begins near uniform, in the layers that attend to more than blocks."""
    parts = attentions(last.model).values()
    whole = [
        value
        for value, part in zip(entropies, parts, strict=True)
        if not isinstance(part, DiagAttention | LLNDiagAttention)
    ]
    if whole:
        most = math.log2(length) if is_masked_lm(last) else 1.0
        near = f"log2 N = {most:.2f}" if is_masked_lm(last) else "log2 of what is visible"
        low = min(whole) / most
        which = "" if len(whole) == len(entropies) else ", layers without blocks"
        figure.check(
            f"H before training{which}",
            f"within 2 % of {near}, our margin",
            f"from {low:.1%} of it",
            low > 0.98,
        )


def _exponents(points: list[CheckpointStatistics], last: Checkpoint) -> Content:
    trained = points[1:]  # before training the buffers hold no average
    x, layers = [point.update for point in trained], range(len(points[0].exponents))
    figure = Figure("Exponents of LLN in training", training=training_of(last))
    row = statement(f"training/{run_name(last.path.parent)}-exponents")
    low, high = float(row["low"]), float(row["high"])
    for key, letter in (("alpha", "α"), ("beta", "β")):
        panel = figure.lines(letter, "updates", letter)
        for layer in layers:
            y = [point.exponents[layer][key] for point in trained]
            panel.curve(f"layer {layer + 1}", x, y, shade=layer / max(len(layers) - 1, 1))
        for edge in (low, high):
            panel.curve(f"paper: {edge:g}", x, [edge] * len(x), style="--")
    exponents = [one for point in trained for one in point.exponents]
    means = [(one["alpha"] * one["beta"]) ** 0.5 for one in exponents]
    products = [one["sigma_q"] * one["sigma_k"] for one in exponents]
    least = points[0].exponents[0]["least"]
    law, reached = f"√(αβ) ≥ √(√(-b)/a) = {least:.4f}", min(means) > least * (1 - 1e-4)
    figure.check(f"law of matching: {law}", "in every layer", f"{min(means):.4f} at least", reached)
    inside = [low < one[key] < high for one in exponents for key in ("alpha", "beta")]
    found = f"{sum(inside)} of {len(inside)}"
    figure.check(f"α and β within ({low:g}; {high:g}) (paper, ViT)", "all", found, all(inside))
    return figure.record(
        "From the running averages in the checkpoints; those of all layers together: √(αβ) from "
        f"{min(means):.3f} to {max(means):.3f}, σ_q σ_k from {min(products):.3f} to {max(products):.3f}."
        + _well_matched(trained),
        by_layer={str(point.update): point.exponents for point in trained},
    )


def _well_matched(points: list[CheckpointStatistics]) -> str:
    """In which checkpoints each layer's σ_q σ_k lies where matching is within 20 %, if that is known."""
    dim = points[0].exponents[0]["head_dim"]
    if dim not in MATCHED:
        return ""
    layers = []
    for number, ones in enumerate(zip(*(point.exponents for point in points), strict=True), 1):
        sigmas = [math.sqrt(one["sigma_q"] * one["sigma_k"]) for one in ones]
        found = [
            f"{point.update:,}"
            for point, sigma in zip(points, sigmas, strict=True)
            if any(low <= sigma <= high for low, high in MATCHED[dim])
        ]
        first = f", first at update {found[0]}" if found else ""
        layers.append(f"layer {number} in {len(found)} of {len(points)} checkpoints{first}")
    return f" Matching is within 20 % for d = {dim}: {'; '.join(layers)}."
