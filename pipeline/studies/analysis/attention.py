"""TransNormer's Fig. 2a and 2b and LLN's measures by layer, of trained models (`analyse.sh attention`)."""

from argparse import Namespace
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.reports.tables import grouped
from pipeline.studies.analysis.measures import Measured, log_normality_by_head, measure, shares
from pipeline.studies.analysis.models import (
    about,
    chosen_layers,
    inputs,
    is_masked_lm,
    label_of,
    load,
    mark_of,
    method_of,
    open_split,
    sequences,
    training_of,
)
from pipeline.studies.analysis.record import Record, chosen, claim, curve, lines, publish
from pipeline.training.checkpoint import Checkpoint
from pipeline.verdicts import Bound, judge_pair
from user_dir.analysis import (
    appendix_f_curve,
    attention_matrix,
    causal_local_score,
    local_score,
    normalized_rows,
    window_widths,
)
from user_dir.attention.diag import DiagAttention

RATIOS = [0.01, 0.02, 0.05, *(i / 20 for i in range(2, 21))]
MAP_LENGTH, MAP_LAYERS = 64, 2


@dataclass(frozen=True)
class Layers:
    """A model and what was measured in the layers chosen; `curves: (layers, points)` of the local score."""

    trained: Checkpoint
    tokens: Tensor
    measured: list[Measured]
    curves: Tensor

    @property
    def method(self) -> str:
        """The key of its method."""
        return method_of(self.trained)

    @property
    def label(self) -> str:
        """What a figure calls it."""
        return label_of(self.trained)

    @property
    def half(self) -> int:
        """How many layers are early ones."""
        return max(1, len(self.curves) // 2)


def run_attention(options: Namespace) -> None:
    """Four figures of all checkpoints given."""
    data = open_split(options, options.checkpoints)
    models = [load(path.absolute(), data) for path in options.checkpoints]
    runs = [(method_of(trained), trained.seed) for trained in models]
    if len(set(runs)) < len(runs):
        raise UserError("two of the checkpoints have the same attention and seed; a figure shows one of each")
    shown = [number for number, (method, _) in enumerate(runs) if method not in dict(runs[:number])]
    sizes = {(is_masked_lm(trained), options.length or trained.tokens_per_sample) for trained in models}
    if len(sizes) > 1:
        raise UserError(
            "a figure compares encoders or language models, at one length; choose it with --length"
        )

    @cache
    def layers() -> list[Layers]:
        return [_layers(trained, data, options) for trained in models]

    settings = chosen(options, "split", "sequences", "length", "layers", "rows", "score", "masked")
    settings |= {"corpus": mark_of(data), "checkpoints": [about(trained) for trained in models]}

    def first() -> list[Layers]:  # of each method
        return [layers()[number] for number in shown]

    publish(options, "local-score", settings, lambda: _local_scores(first(), layers(), options))
    publish(options, "maps", settings, lambda: _maps([models[number] for number in shown], data, options))
    publish(options, "concentration", settings, lambda: _concentration(first()))
    publish(options, "log-normality", settings, lambda: _log_normality(first()))


def _layers(trained: Checkpoint, data: PreparedData, options: Namespace) -> Layers:
    tokens = sequences(trained, data, options)
    print(f"  {label_of(trained)}: {tokens.shape[0]} sequences of {tokens.shape[1]}", flush=True)
    found = [measure(given) for given in chosen_layers(inputs(trained.model, tokens), options.layers)]
    return Layers(trained, tokens, found, torch.stack([_score(one, options) for one in found]))


def _score(found: Measured, options: Namespace) -> Tensor:
    """The local score of a layer at `RATIOS`: means over sequences and heads."""
    if options.score != "definition":
        matrices = normalized_rows(found.matrix, options.rows).flatten(0, 1)
        if options.score == "appendix-f-blocks":
            matrices = torch.stack([_saved_blocks(found, matrix) for matrix in matrices])
        curves = [appendix_f_curve(matrix) for matrix in matrices]
        widths = torch.stack([x for x, _ in curves]).mean(0)
        grid = torch.tensor(RATIOS, dtype=torch.float64)
        reached = torch.searchsorted(widths.contiguous(), grid, right=True) - 1
        return curves[0][1][reached.clamp(min=0)]
    rows = normalized_rows(found.matrix, options.rows)
    if found.given.causal:
        return causal_local_score(rows, RATIOS).mean((0, 1))
    return local_score(rows, window_widths(rows.shape[-1], RATIOS)).mean((0, 1))


def _saved_blocks(found: Measured, matrix: Tensor) -> Tensor:
    """N x C, as the authors' last code saves block attention; other matrices as they are."""
    module = found.given.module
    if not isinstance(module, DiagAttention):
        return matrix
    size, length = min(module.block_size, len(matrix)), len(matrix)
    column = torch.arange(length)[:, None] // size * size + torch.arange(size)
    return matrix.gather(1, column.clamp(max=length - 1)).masked_fill(column >= length, 0.0)


def _dilution(runs: list[Layers]) -> list[Record]:
    """Whether the early layers attend more locally than those of linear attention, over the seeds of each."""
    areas = {
        method: [one.curves[: one.half].mean().item() for one in ones]
        for method, ones in grouped(runs, lambda one: one.method).items()
    }
    statements = {
        "softmax": "vanilla attention is more local than 1+elu in early layers",
        "transnormer_t2": "TransNormer is more local than 1+elu in early layers",
    }
    return [
        claim(
            statement,
            "a difference of at least 0",
            judge_pair(areas[method], areas["elu"], Bound(0, at_most=False), ratio=False),
        )
        for method, statement in statements.items()
        if method in areas and "elu" in areas
    ]


def _local_scores(models: list[Layers], runs: list[Layers], options: Namespace) -> Record:
    """Curves of `models`, the first run of each method; the checks are over all `runs`."""
    half = models[0].half
    parts = {
        "Early half of the layers": slice(None, half),
        "Late half": slice(half, None),
        "All layers": slice(None),
    }
    panels = []
    for title, part in parts.items():
        curves = [
            curve(one.label, RATIOS, one.curves[part].mean(0).tolist(), one.method)
            for one in models
            if len(one.curves[part])
        ]
        uniform = curve("uniform", RATIOS, RATIOS, style=":")
        panels.append(lines(title, "neighbourhood, share of N", "share of attention", [*curves, uniform]))
    areas = {one.label: one.curves.mean(-1).tolist() for one in models}
    by_layer = [
        curve(label, range(1, len(y) + 1), y, one.method, style="o-")
        for one, (label, y) in zip(models, areas.items(), strict=True)
    ]
    longest = max(map(len, areas.values()))
    uniform_area = [sum(RATIOS) / len(RATIOS)] * longest
    by_layer.append(curve("uniform", range(1, longest + 1), uniform_area, style=":"))
    panels.append(lines("Mean over the neighbourhoods", "layer", "share of attention", by_layer))
    causal = models[0].measured[0].given.causal
    count, length = models[0].tokens.shape
    return {
        "title": "Locally accumulated attention",
        "training": training_of(models[0].trained),
        "columns": 2,
        "panels": panels,
        "area_by_layer": areas,
        "checks": _dilution(runs),
        "excluded": {one.label: [shares(found) for found in one.measured] for one in models},
        "note": f"{count} sequences of {length} tokens, mean over heads; "
        + ("the last share of the visible tokens" if causal else "a window around each token")
        + f"; rows: {options.rows}, score: {options.score}. "
        f"{_budgets([one.trained for one in models])} {_signed(models)}",
    }


def _budgets(models: list[Checkpoint]) -> str:
    """After how many updates the models are compared."""
    return "Updates: " + ", ".join(f"{label_of(one)} {one.updates:,}" for one in models) + "."


def _signed(models: list[Layers]) -> str:
    """How much of signed matrices is negative, and how many rows are zero."""
    words = []
    for one in models:
        found = [shares(measured) for measured in one.measured]
        negative, zero = (max(share[key] for share in found) for key in ("negative_share", "zero_rows"))
        if negative or zero:
            words.append(
                f"{one.label}: up to {negative:.0%} negative mass, {zero:.0%} rows of zeros in a layer"
            )
    return "; ".join(words)


def _maps(models: list[Checkpoint], data: PreparedData, options: Namespace) -> Record:
    panels = []
    for number, trained in enumerate(models):
        length = min(MAP_LENGTH, options.length or trained.tokens_per_sample)
        tokens = sequences(trained, data, Namespace(**{**vars(options), "sequences": 1, "length": length}))
        words = [
            trained.task.source_dictionary[token].replace("▁", "") or "_" for token in tokens[0].tolist()
        ]
        for given in inputs(trained.model, tokens)[:MAP_LAYERS]:
            matrix = attention_matrix(given.module, given.x, causal=given.causal)
            panels.append(
                {
                    "kind": "map",
                    "title": f"{label_of(trained)}, {given.name}",
                    "tokens": words,
                    "values": normalized_rows(matrix)[0].mean(0),
                    "color_bar": len(panels) % MAP_LAYERS == 1,
                    "model": number,
                }
            )
    return {
        "title": "Attention maps of the first layers",
        "training": training_of(models[0]),
        "panels": panels,
        "columns": MAP_LAYERS,
        "note": f"One sequence of the {options.split} split, mean of the absolute weights over heads, rows "
        f"summing to 1; 0 is uniform attention, white is no attention. {_budgets(models)}",
    }


def _concentration(models: list[Layers]) -> Record:
    rows = [
        ("Entropy", "H, bits", "relative_entropy" if models[0].measured[0].given.causal else "entropy"),
        ("Spectral gap", "γ", "gap"),
        ("Temperature of the scores", "τ", "temperature"),
        ("Top singular value", "s₁", "singular_value"),
    ]
    panels = []
    for title, unit, key in rows:
        curves = []
        for one in models:
            found = [measured.quartiles(key) for measured in one.measured]
            if all(found):
                low, mean, high = zip(*found, strict=True)
                layers = list(range(1, len(mean) + 1))
                curves.append(curve(one.label, layers, mean, one.method, style="o-", low=low, high=high))
        label = "H over log2 of what is visible" if key == "relative_entropy" else unit
        panels.append(lines(title, "layer", label, curves, y="log" if key == "temperature" else "linear"))
    heads = {
        one.label: {
            measured.given.name: {name: measured.mean_by_head(name) for name in measured.numbers}
            for measured in one.measured
        }
        for one in models
    }
    return {
        "title": "Concentration of attention",
        "training": training_of(models[0].trained),
        "columns": 2,
        "panels": panels,
        "by_head": heads,
        "note": "Mean and quartiles over sequences and heads. "
        f"{_budgets([one.trained for one in models])} {_signed(models)}",
    }


def _log_normality(models: list[Layers]) -> Record:
    found = {one.label: {m.given.name: log_normality_by_head(m) for m in one.measured} for one in models}
    panels = []
    for title, key, unit in (
        ("Variance of ln P", "variance", "variance"),
        ("Skew of ln P", "skew", "skew"),
        ("Distance from log-normal", "distance", "Kolmogorov distance"),
    ):
        curves = []
        for one in models:
            by_layer = [[head[key] for head in heads if key in head] for heads in found[one.label].values()]
            pairs = [(i, sum(values) / len(values)) for i, values in enumerate(by_layer, 1) if values]
            if pairs:
                x, y = zip(*pairs, strict=True)
                curves.append(curve(one.label, x, y, one.method, style="o-"))
        panels.append(lines(title, "layer", unit, curves))
    return {
        "title": "Log-normality of trained attention",
        "training": training_of(models[0].trained),
        "panels": panels,
        "by_head": found,
        "note": "Mean over heads. Weights of zero are left out; their share is in the JSON file. A normal "
        "ln P has skew 0 and distance 0. " + _budgets([one.trained for one in models]),
    }
