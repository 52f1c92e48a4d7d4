"""TransNormer's Fig. 2a and 2b and LLN's measures by layer, of trained models (`figures attention`)."""

from argparse import Namespace
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lab.data.prepared import PreparedData
from lab.errors import UserError
from lab.figures.figure import Content, Figure, chosen, write_once
from lab.figures.measures import (
    ENCODERS,
    LANGUAGE_MODELS,
    MEASURES,
    Measured,
    log_normality_by_head,
    measure,
    shares,
)
from lab.figures.models import (
    about,
    chosen_layers,
    inputs,
    is_masked_lm,
    load,
    mark_of,
    method_of,
    model_label,
    open_split,
    sequences,
    training_of,
)
from lab.publish.tables import grouped
from lab.run.checkpoint import Checkpoint
from lab.verdicts import NOT_COMPARABLE, Bound, judge_pair, withheld
from user_dir.analysis import (
    appendix_f_curve,
    attention_matrix,
    causal_local_score,
    local_score,
    normalized_rows,
    window_widths,
)
from user_dir.attention.diag import DiagAttention

NEAR = (0, 0.5)
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
        """Its name in a figure."""
        return model_label(self.trained)

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

    write_once(options, "local-score", settings, lambda: _local_scores(first(), layers(), options))
    write_once(options, "maps", settings, lambda: _maps([models[number] for number in shown], data, options))
    write_once(options, "concentration", settings, lambda: _concentration(first()))
    write_once(options, "log-normality", settings, lambda: _log_normality(first()))


def _layers(trained: Checkpoint, data: PreparedData, options: Namespace) -> Layers:
    tokens = sequences(trained, data, options)
    print(f"  {model_label(trained)}: {tokens.shape[0]} sequences of {tokens.shape[1]}", flush=True)
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


def _check_dilution(figure: Figure, runs: list[Layers]) -> None:
    """Whether the early layers attend more locally than linear attention's, over the seeds of each."""
    areas = {
        method: {one.trained.seed: one.curves[: one.half].mean().item() for one in ones}
        for method, ones in grouped(runs, lambda one: one.method).items()
    }
    for method, name in (("softmax", "vanilla attention"), ("transnormer_t2", "TransNormer")):
        if method in areas and "elu" in areas:
            verdict = judge_pair(areas[method], areas["elu"], Bound("at_least", 0), ratio=False)
            if method == "transnormer_t2":
                verdict = withheld(
                    verdict, NOT_COMPARABLE, "by construction: its early layers see blocks only"
                )
            figure.claim(
                f"{name} is more local than 1+elu in early layers", "a difference of at least 0", verdict
            )


def _local_scores(models: list[Layers], runs: list[Layers], options: Namespace) -> Content:
    """Curves of `models`, the first run of each method; the checks are over all `runs`."""
    figure = Figure("Locally accumulated attention", training=training_of(models[0].trained))
    half = models[0].half
    for title, part in (
        ("Early half of the layers", slice(None, half)),
        ("Late half", slice(half, None)),
        ("All layers", slice(None)),
    ):
        panel = figure.lines(title, "neighbourhood, share of N", "share of attention")
        panel["x_range"] = NEAR  # all of the row has all of the attention, whatever the method
        for one in models:
            if len(one.curves[part]):
                panel.curve(one.label, RATIOS, one.curves[part].mean(0).tolist(), one.method)
        panel.curve("uniform", RATIOS, RATIOS, style=":")
    areas = {one.label: one.curves.mean(-1).tolist() for one in models}
    longest = max(map(len, areas.values()))
    panel = figure.lines("Mean over the neighbourhoods", "layer", "share of attention")
    for one in models:
        y = areas[one.label]
        panel.curve(one.label, range(1, len(y) + 1), y, one.method, style="o-")
    panel.curve("uniform", range(1, longest + 1), [sum(RATIOS) / len(RATIOS)] * longest, style=":")
    _check_dilution(figure, runs)
    causal = models[0].measured[0].given.causal
    count, length = models[0].tokens.shape
    return figure.record(
        f"{count} sequences of {length} tokens, mean over heads. The score is the share of attention that "
        + (
            "a token spends on the nearest of the tokens before it"
            if causal
            else "a token spends on a window"
        )
        + f" (weights: {options.rows}, score: {options.score}, see docs/analysis.md). "
        f"{_budgets([one.trained for one in models])} {_signed(models)}",
        area_by_layer=areas,
        excluded={one.label: [shares(found) for found in one.measured] for one in models},
    )


def _budgets(models: list[Checkpoint]) -> str:
    """After how many updates the models are compared."""
    return "Updates: " + ", ".join(f"{model_label(one)} {one.updates:,}" for one in models) + "."


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


def _maps(models: list[Checkpoint], data: PreparedData, options: Namespace) -> Content:
    figure = Figure("Attention maps of the first layers", training=training_of(models[0]))
    for number, trained in enumerate(models):
        length = min(MAP_LENGTH, options.length or trained.tokens_per_sample)
        tokens = sequences(trained, data, Namespace(**{**vars(options), "sequences": 1, "length": length}))
        words = [
            trained.task.source_dictionary[token].replace("▁", "") or "_" for token in tokens[0].tolist()
        ]
        for layer, given in enumerate(inputs(trained.model, tokens)[:MAP_LAYERS], 1):
            matrix = attention_matrix(given.module, given.x, causal=given.causal)
            figure.panels.append(
                {
                    "kind": "map",
                    "title": f"{model_label(trained)}, layer {layer}",
                    "tokens": words,
                    "causal": given.causal,
                    "values": normalized_rows(matrix)[0].mean(0),
                    "color_bar": len(figure.panels) % MAP_LAYERS == 1,
                    "model": number,
                }
            )
    return figure.record(
        f"One sequence of the {options.split} split, mean of the absolute weights over heads, rows summing "
        "to 1; 0 is uniform attention over what a row sees, white is no attention. "
        f"{_budgets(models)}"
    )


def _concentration(models: list[Layers]) -> Content:
    figure = Figure("Concentration of attention", training=training_of(models[0].trained))
    for key in (*(LANGUAGE_MODELS if models[0].measured[0].given.causal else ENCODERS), "singular_value"):
        title, unit = MEASURES[key]
        panel = figure.lines(title, "layer", unit, y="log" if key == "temperature" else "linear")
        for one in models:
            found = [measured.quartiles(key) for measured in one.measured]
            if all(found):
                low, mean, high = zip(*found, strict=True)
                layers = range(1, len(mean) + 1)
                panel.curve(one.label, layers, mean, one.method, style="o-", low=low, high=high)
    heads = {
        one.label: {
            measured.given.name: {name: measured.mean_by_head(name) for name in measured.numbers}
            for measured in one.measured
        }
        for one in models
    }
    return figure.record(
        "Mean and quartiles over sequences and heads. "
        f"{_budgets([one.trained for one in models])} {_signed(models)}",
        by_head=heads,
    )


def _log_normality(models: list[Layers]) -> Content:
    found = {one.label: {m.given.name: log_normality_by_head(m) for m in one.measured} for one in models}
    figure = Figure("Log-normality of trained attention", training=training_of(models[0].trained))
    for title, key, unit in (
        ("Variance of ln P", "variance", "variance"),
        ("Skew of ln P", "skew", "skew"),
        ("Distance from log-normal", "distance", "Kolmogorov distance"),
    ):
        panel = figure.lines(title, "layer", unit)
        for one in models:
            by_layer = [[head[key] for head in heads if key in head] for heads in found[one.label].values()]
            pairs = [(i, sum(values) / len(values)) for i, values in enumerate(by_layer, 1) if values]
            if pairs:
                x, y = zip(*pairs, strict=True)
                panel.curve(one.label, x, y, one.method, style="o-")
    return figure.record(
        "Mean over heads. Weights of zero are left out; their share is in the JSON file. A normal "
        "ln P has skew 0 and distance 0. " + _budgets([one.trained for one in models]),
        by_head=found,
    )
