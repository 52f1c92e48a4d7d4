"""TransNormer's Table 2, LLN's Fig. 8 and 10: runs and their logs (`figures gradients`, `temperature`)."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice, pairwise
from statistics import fmean
from typing import Any

import torch
from torch import nn

from lab.console import number_of
from lab.data.prepared import PreparedData, open_prepared
from lab.errors import UserError
from lab.figures.figure import Content, Figure, write_once
from lab.figures.models import (
    AFTER_WARMUP,
    ANALYSED_HERE,
    SECOND_HALF,
    LoggedRun,
    check_every_update,
    load,
    mark_of,
    read_logged_run,
    run_name,
    what_was_read,
)
from lab.figures.training import checkpoints_of
from lab.files import shown_path
from lab.methods import ANALYSED
from lab.papers import read_table, statement
from lab.publish.tables import grouped
from lab.run.checkpoint import Checkpoint, check_reads_text
from lab.verdicts import NOT_COMPARABLE, Bound, Seeds, Values, judge_pair, withheld
from user_dir.analysis import relative_deviation
from user_dir.analysis.capture import attentions

HALF_FIXED = ("2", "4")
"""The exponents of the group `half` of configs/studies/analysis_runs.yaml that are fixed."""
FOLLOWS = 0.02
"""How far apart the perplexities of two methods may be where one follows the other: our margin."""
UNTUNED = "one learning rate for all methods, tuned for none of them"
"""Why the losses of these runs decide nothing."""
SPLIT = "train"
"""The split of the minibatches that are read at checkpoints."""
MINIBATCHES = 16
"""How many are read at a checkpoint, if the user does not say."""
ALL = "all parameters"
TOO_CLOSE = 0.01  # bits


def run_gradients(options: Namespace) -> None:
    """The figures of all runs given."""
    if options.at_checkpoints and options.data is None:
        raise UserError("--at-checkpoints computes gradients; name the prepared corpus with --data")
    if not options.at_checkpoints and (options.data or options.minibatches):
        name = "--data" if options.data else "--minibatches"
        raise UserError(f"{name} is for gradients at checkpoints; add --at-checkpoints, or leave it out")
    data = open_prepared(options.data.absolute(), (SPLIT,)) if options.at_checkpoints else None
    runs = [read_logged_run(folder) for folder in options.runs]
    half = [run for run in runs if any("loss_scale" in record for record in run.records.values())]
    full = [run for run in runs if run not in half]
    check_apart(half)
    check_apart(full)
    for run in full:
        check_every_update(run)
    if data and not full:
        raise UserError("--at-checkpoints needs a run in float32, and all of these are in fp16")
    if full:
        settings = what_was_read(full)
        write_once(options, "relative-deviation", settings, lambda: relative_deviations(full))
        write_once(options, "loss", settings, lambda: _losses(full))
    if half:
        write_once(options, "loss-scale", what_was_read(half), lambda: _loss_scales(half))
    if data:
        minibatches = options.minibatches or MINIBATCHES
        settings = {**what_was_read(full), "corpus": mark_of(data), "minibatches": minibatches}
        write_once(options, "at-checkpoints", settings, lambda: at_checkpoints(full, data, minibatches))


def check_apart(runs: Sequence[LoggedRun]) -> None:
    """UserError for two runs that a figure would not tell apart."""
    seen: dict[tuple[Any, ...], LoggedRun] = {}
    for run in runs:
        for key in ((run.method, exponent(run), run.seed), (run_name(run.folder),)):
            if (other := seen.setdefault(key, run)) is not run:
                both = f"{shown_path(other.folder)} and {shown_path(run.folder)}"
                raise UserError(
                    f"{both} have one name, or one attention and seed; a figure shows one of each"
                )


def by_method(runs: Sequence[LoggedRun]) -> dict[str, list[LoggedRun]]:
    """The runs of each method, by seed."""
    return grouped(sorted(runs, key=lambda run: run.seed), lambda run: run.method)


def published() -> dict[str, float]:
    """TransNormer's Table 2 by the keys of `methods.ANALYSED`."""
    table = {row["method"]: float(row["relative_std"]) for row in read_table("transnormer_02_gradient_rsd")}
    return {key: table[method.transnormer] for key, method in ANALYSED.items() if method.transnormer in table}


def deviations_of(run: LoggedRun) -> dict[str, float]:
    """The relative deviations of a run; UserError if it has logged nothing after its warm-up."""
    found = run.deviations()
    if AFTER_WARMUP not in found:
        raise UserError(
            f"{shown_path(run.folder)} has logged nothing after its {run.warm_up} updates of warm-up; "
            "train it further"
        )
    return found


def relative_deviations(runs: Sequence[LoggedRun]) -> Content:
    """R1: the population's standard deviation of gradient norms over their mean, after warm-up."""
    found, paper = by_method(runs), published()
    deviations = {key: [deviations_of(run) for run in group] for key, group in found.items()}
    figure = Figure("Relative deviation of gradients", training=runs[0].training())
    panel = figure.lines("Norm of the gradient", "updates", "gradient norm", y="log")
    for key, group in found.items():
        panel.curve(ANALYSED[key].label, *group[0].series("gnorm"), key)
    own = {key: [one[AFTER_WARMUP] for one in ones] for key, ones in deviations.items()}
    mean, low, high = ([f(own[key]) for key in found] for f in (fmean, min, max))
    figure.bars(
        "Relative deviation after warm-up, and the paper's",
        "std over mean",
        [ANALYSED[key].label for key in found],
        found,
        {"label": "here", "values": mean, "low": low, "high": high},
        {"label": "paper", "values": [paper.get(key) for key in found], "hollow": True},
    )
    for part in (AFTER_WARMUP, SECOND_HALF):
        late = {
            key: {run.seed: one[part] for run, one in zip(group, deviations[key], strict=True)}
            for key, group in found.items()
        }
        _check_orders(figure, part, late, paper)
    updates, seeds = len(panel["curves"][0]["x"]), max(map(len, found.values()))
    return figure.record(
        f"Norm of the gradient before clipping in every update, {updates:,} updates, up to "
        f"{number_of(seeds, 'seeds')}; bars: mean over seeds, lines their range. Over all updates the first "
        "ones decide, so the bars and the first verdicts are on the updates after warm-up, the others on the "
        "second half.",
        deviations=deviations,
    )


def _check_orders(figure: Figure, part: str, own: Values, paper: dict[str, float]) -> None:
    """Whether neighbours in the paper's order of relative deviations keep it in a part of our runs."""
    both = sorted((key for key in own if key in paper), key=paper.__getitem__)
    for less, more in pairwise(both):
        figure.claim(
            f"{part}, {ANALYSED[less].label} varies less than {ANALYSED[more].label}",
            f"{paper[less]:g} and {paper[more]:g}, a ratio of at most 1",
            judge_pair(own[less], own[more], Bound("at_most", 1), ratio=True),
        )


def _losses(runs: Sequence[LoggedRun]) -> Content:
    """Fig. 8a: the validation loss, drawn after the first quarter, in which all methods fall alike."""
    found, unit = by_method(runs), runs[0].unit
    figure = Figure("Loss in training", training=runs[0].training())
    panel, last = figure.lines("Validation loss", "updates", unit), max(runs[0].records)
    panel["x_range"] = [last // 4, last]
    for key, group in found.items():
        if valid := sorted(group[0].valid.items()):
            panel.curve(ANALYSED[key].label, *zip(*valid, strict=True), key, style="o-")
    _check_follows(figure, found)
    return figure.record(
        "One run per method, after the first quarter of its updates; the verdict is over all seeds."
    )


def _check_follows(figure: Figure, found: dict[str, list[LoggedRun]]) -> None:
    """Whether LLN ends where softmax attention does, by the validation loss after the last update."""
    last = {
        key: {run.seed: 2 ** run.valid[max(run.valid)] for run in group if run.valid}
        for key, group in found.items()
    }
    if last.get("lln") and last.get("softmax"):
        verdict = judge_pair(last["lln"], last["softmax"], Bound("within", FOLLOWS), ratio=True)
        figure.claim(
            "LLN's perplexity per token follows that of softmax",
            f"within {FOLLOWS:.0%}, our margin",
            withheld(verdict, NOT_COMPARABLE, UNTUNED),
        )


def _smoothed(x: list[int], y: list[float], parts: int = 20) -> tuple[list[int], list[float]]:
    width = max(1, len(x) // parts)
    starts = range(0, len(x) - width + 1, width)
    return [x[i + width - 1] for i in starts], [fmean(y[i : i + width]) for i in starts]


def _loss_scales(runs: Sequence[LoggedRun]) -> Content:
    """Fig. 8b and 10b: the inverse loss scale in fp16."""
    figure = Figure("Inverse loss scale in fp16", training=runs[0].training())
    panel = figure.lines("Inverse loss scale", "updates", "1 / loss scale", y="log")
    largest: dict[str, dict[int, float]] = {}  # by label and seed
    fixed = sorted({exponent(run) for run in runs} - {0})
    styles = {0: "-", **dict(zip(fixed, cycle(("--", ":")), strict=False))}
    for run in runs:
        updates, scales = run.series("loss_scale")
        inverse = [1 / scale for scale in scales]
        alpha = exponent(run)
        label = ANALYSED[run.method].label + (f", α = {alpha:g}" if alpha else "")
        panel.curve(label, *_smoothed(updates, inverse), run.method, style=styles[alpha])
        largest.setdefault(label, {})[run.seed] = max(inverse[len(inverse) // 4 :])
    _check_loss_scales(figure, largest)
    windows = sorted({run.scale_window for run in runs})
    return figure.record(
        f"fp16, scale window of {' or '.join(map(str, windows))} updates; means of 20 parts of the "
        "run, without updates that overflowed. The maximum is over the updates after the first quarter, in "
        "which the scale is found."
    )


def _check_loss_scales(figure: Figure, largest: Values) -> None:
    """The paper's statement on the largest inverse scales, if the runs it needs were given."""
    flat, steep = (f"LLN, α = {value}" for value in HALF_FIXED)
    if {"LLN", flat, steep} <= largest.keys():
        matched, fixed = largest["LLN"], largest[flat]
        others = {seed: max(matched[seed], fixed[seed]) for seed in matched.keys() & fixed.keys()}
        figure.claim(
            f"α = β = {HALF_FIXED[1]} has a much larger inverse scale than {HALF_FIXED[0]} and matching",
            "at least 4 times",
            judge_pair(largest[steep], others, Bound("at_least", 4), ratio=True),
        )
    if {"LLN", "softmax"} <= largest.keys():
        figure.claim(
            "LLN's largest inverse loss scale does not exceed softmax's",
            "a ratio of at most 1",
            judge_pair(largest["LLN"], largest["softmax"], Bound("at_most", 1), ratio=True),
        )


def at_checkpoints(runs: Sequence[LoggedRun], data: PreparedData, minibatches: int) -> Content:
    """R2 against updates, for all parameters and for the mean over the attentions of the layers."""
    for run in runs:
        check_reads_text(checkpoints_of(run.folder)[-1][1], ANALYSED_HERE)
    figure = Figure("Noise of gradients at checkpoints")
    whole = figure.lines("All parameters", "updates", "std over mean")
    parts = figure.lines("Attention, mean of the layers", "updates", "std over mean")
    by_layer: dict[str, dict[str, dict[str, float]]] = {}
    for run in {run.method: run for run in reversed(runs)}.values():
        label = ANALYSED[run.method].label
        points: dict[int, dict[str, float]] = {}
        for update, path in checkpoints_of(run.folder):
            print(f"  {label}: update {update:,}", flush=True)
            points[update] = _deviations(load(path, data), minibatches)
        by_layer[label] = {str(update): one for update, one in points.items()}
        layers = [[value for name, value in one.items() if name != ALL] for one in points.values()]
        whole.curve(label, points, [one[ALL] for one in points.values()], run.method, style="o-")
        parts.curve(label, points, [fmean(one) for one in layers], run.method, style="o-")
    return figure.record(
        f"Relative deviation of the norm of the gradient over {minibatches} minibatches at "
        "fixed weights: noise without the drift of training.",
        by_layer=by_layer,
    )


def _deviations(trained: Checkpoint, count: int) -> dict[str, float]:
    parts: dict[str, nn.Module] = {ALL: trained.model, **attentions(trained.model)}
    norms: dict[str, list[float]] = {name: [] for name in parts}
    for loss in _minibatch_losses(trained, count):
        trained.model.zero_grad()
        loss.backward()
        for name, part in parts.items():
            gradients = [p.grad for p in part.parameters() if p.grad is not None]
            norms[name].append(torch.stack([g.norm() for g in gradients]).norm().item())
    return {name: relative_deviation(values) for name, values in norms.items()}


def _minibatch_losses(trained: Checkpoint, count: int) -> Iterator[torch.Tensor]:
    """The mean loss of each of `count` minibatches, the same for every checkpoint of a corpus."""
    task, config = trained.task, trained.config
    task.load_dataset(SPLIT)
    criterion = task.build_criterion(config.criterion)
    batches = task.get_batch_iterator(
        task.dataset(SPLIT),
        max_sentences=config.dataset.batch_size,
        max_tokens=config.dataset.max_tokens,
        seed=1,
    ).next_epoch_itr()
    for sample in islice(batches, count):
        loss, size, _ = criterion(trained.model, sample)
        yield loss / size


def run_temperature(options: Namespace) -> None:
    """One figure of all runs given."""
    runs = [read_logged_run(folder) for folder in options.runs]
    for run in runs:
        if run.method != "lln" or not run.valid:
            raise UserError(f"{shown_path(run.folder)} is not an LLN run with valid losses; leave it out")
    check_apart(runs)
    if not any(exponent(run) for run in runs):
        raise UserError("none of the runs has fixed exponents (--lln-alpha, --lln-beta); give some that have")
    write_once(options, "fixed-exponents", what_was_read(runs), lambda: _fixed_exponents(runs))


def exponent(run: LoggedRun) -> float:
    """The fixed alpha of a run, 0 for matched ones."""
    return float(run.settings.get("lln_alpha") or 0)


def _fixed_exponents(runs: list[LoggedRun]) -> Content:
    by_exponent = grouped(runs, exponent)
    losses = {
        alpha: {run.seed: run.valid[max(run.valid)] for run in group} for alpha, group in by_exponent.items()
    }
    matched = losses.pop(0.0, {})
    x = sorted(losses)
    figure = Figure("LLN with fixed exponents", training=runs[0].training())
    panel = figure.lines("Validation loss", "α = β", runs[0].unit)
    mean, low, high = ([f(losses[alpha].values()) for alpha in x] for f in (fmean, min, max))
    panel.curve("fixed", x, mean, "lln", style="o-", low=low, high=high)
    close = max(mean) - min(mean) < TOO_CLOSE
    if matched:
        mean, low, high = ([f(matched.values())] * len(x) for f in (fmean, min, max))
        panel.curve("matched", x, mean, "lln", style="--", low=low, high=high)
    _check_edge(figure, losses)
    seeds = max(map(len, losses.values()))
    spread = "; range over seeds" if seeds > 1 else ""
    few = " The losses here are too close to tell the exponents apart: too few updates." if close else ""
    return figure.record(
        f"After {max(runs[0].records):,} updates, {number_of(seeds, 'seeds')}{spread}. The paper "
        f"shows accuracies of a ViT.{few}"
    )


def _check_edge(figure: Figure, losses: Mapping[float, Seeds]) -> None:
    """Whether the loss is worse below the paper's exponent: the best one there against the worst above."""
    edge = float(statement("temperature/fixed-exponents")["low"])

    def mean(found: Seeds) -> float:
        return fmean(found.values())

    below = min((found for alpha, found in losses.items() if alpha < edge), key=mean, default={})
    above = max((found for alpha, found in losses.items() if alpha >= edge), key=mean, default={})
    if below and above:
        figure.claim(
            f"loss is higher for α = β below {edge:g} than from there on",
            "accuracy drops there (paper, ViT)",
            withheld(judge_pair(below, above, Bound("at_least", 0), ratio=False), NOT_COMPARABLE, UNTUNED),
        )
