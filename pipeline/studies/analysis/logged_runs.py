"""TransNormer's Table 2, LLN's Fig. 8 and 10: runs and their logs (`analyse.sh gradients`, `temperature`)."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import cycle, islice, pairwise
from statistics import fmean

import torch
from torch import nn

from pipeline.console import number_of
from pipeline.data.prepared import PreparedData, open_prepared
from pipeline.errors import UserError
from pipeline.files import shown_path
from pipeline.methods import ANALYSED
from pipeline.papers import read_table, statement
from pipeline.reports.tables import grouped
from pipeline.studies.analysis.models import (
    ANALYSED_HERE,
    LoggedRun,
    check_every_update,
    load,
    mark_of,
    read_run,
    what_was_read,
)
from pipeline.studies.analysis.record import Record, claim, curve, lines, publish
from pipeline.studies.analysis.training import checkpoints_of
from pipeline.training.checkpoint import Checkpoint, check_reads_text
from pipeline.verdicts import Bound, judge_pair
from user_dir.analysis import relative_deviation
from user_dir.analysis.capture import attentions

HALF_FIXED = ("2", "4")
"""The exponents of the group `half` of configs/studies/analysis_runs.yaml that are fixed."""
FOLLOWS = 1.02
"""The ratio of losses up to which one follows the other."""
SPLIT = "train"
"""Of the minibatches at checkpoints."""
ALL = "all parameters"
TOO_CLOSE = 0.01  # bits


def run_gradients(options: Namespace) -> None:
    """The figures of all runs given."""
    if options.at_checkpoints and options.data is None:
        raise UserError("--at-checkpoints computes gradients; name the prepared corpus with --data")
    data = open_prepared(options.data.absolute(), (SPLIT,)) if options.at_checkpoints else None
    runs = [read_run(folder) for folder in options.runs]
    half = [run for run in runs if any("loss_scale" in record for record in run.records.values())]
    full = [run for run in runs if run not in half]
    for run in full:
        check_every_update(run)
    if data and not full:
        raise UserError("--at-checkpoints needs a run in float32, and all of these are in fp16")
    if full:
        settings = what_was_read(full)
        publish(options, "relative-deviation", settings, lambda: relative_deviations(full))
        publish(options, "loss", settings, lambda: _losses(full))
    if half:
        publish(options, "loss-scale", what_was_read(half), lambda: _loss_scales(half))
    if data:
        settings = {**what_was_read(full), "corpus": mark_of(data), "minibatches": options.minibatches}
        minibatches = options.minibatches
        publish(options, "at-checkpoints", settings, lambda: at_checkpoints(full, data, minibatches))


def by_method(runs: Sequence[LoggedRun]) -> dict[str, list[LoggedRun]]:
    """The runs of each method, by seed."""
    return grouped(sorted(runs, key=lambda run: run.seed), lambda run: run.method)


def published() -> dict[str, float]:
    """TransNormer's Table 2 by the keys of `methods.ANALYSED`."""
    table = {row["method"]: float(row["relative_std"]) for row in read_table("transnormer_02_gradient_rsd")}
    return {key: table[method.transnormer] for key, method in ANALYSED.items() if method.transnormer in table}


def relative_deviations(runs: Sequence[LoggedRun]) -> Record:
    """R1: the population's standard deviation of gradient norms over their mean, over all updates."""
    found, paper = by_method(runs), published()
    deviations = {key: [run.deviations() for run in group] for key, group in found.items()}
    norms = lines(
        "Norm of the gradient",
        "updates",
        "gradient norm",
        [curve(ANALYSED[key].label, *group[0].series("gnorm"), key) for key, group in found.items()],
        "linear",
        "log",
    )
    own = {key: [one["all"] for one in ones] for key, ones in deviations.items()}
    bars = {
        "kind": "bars",
        "title": "Relative deviation, here and in the paper",
        "y_label": "std over mean of all updates",
        "groups": [ANALYSED[key].label for key in found],
        "methods": list(found),
        "series": [
            {
                "label": "here",
                "values": [fmean(own[key]) for key in found],
                "low": [min(own[key]) for key in found],
                "high": [max(own[key]) for key in found],
            },
            {"label": "paper", "values": [paper.get(key) for key in found], "hollow": True},
        ],
    }
    seeds = max(len(group) for group in found.values())
    return {
        "title": "Relative deviation of gradients",
        "panels": [norms, bars],
        "deviations": deviations,
        "training": runs[0].training(),
        "note": f"Norm of the gradient before clipping in every update, {len(norms['curves'][0]['x']):,} "
        f"updates, {number_of(seeds, 'seeds')}; bars: mean over seeds, lines their range. The "
        "first updates decide much of it; figures without warm-up and for the second half are in the JSON "
        "file.",
        "checks": _orders(own, paper),
    }


def _orders(own: dict[str, list[float]], paper: dict[str, float]) -> list[Record]:
    """Whether neighbours in the paper's order of relative deviations have the same order here."""
    both = sorted((key for key in own if key in paper), key=paper.__getitem__)
    return [
        claim(
            f"{ANALYSED[less].label} varies less than {ANALYSED[more].label}",
            f"{paper[less]:g} and {paper[more]:g}, a ratio of at most 1",
            judge_pair(own[less], own[more], Bound(1, at_most=True), ratio=True),
        )
        for less, more in pairwise(both)
    ]


def _losses(runs: Sequence[LoggedRun]) -> Record:
    """Fig. 8a: training and validation loss."""
    found = by_method(runs)
    training, validation = [], []
    for key, group in found.items():
        x, y = _smoothed(*group[0].series("loss"))
        training.append(curve(ANALYSED[key].label, x, y, key))
        if valid := sorted(group[0].valid.items()):
            validation.append(curve(ANALYSED[key].label, *zip(*valid, strict=True), key, style="o-"))
    unit = runs[0].unit
    return {
        "title": "Loss in training",
        "training": runs[0].training(),
        "panels": [
            lines("Training loss", "updates", unit, training),
            lines("Validation loss", "updates", unit, validation),
        ],
        "note": "One run per method; training loss as means of 20 parts of the run; the verdict is over all "
        "seeds.",
        "checks": _follows(found),
    }


def _follows(found: dict[str, list[LoggedRun]]) -> list[Record]:
    """Whether LLN ends where softmax attention does, by the validation loss after the last update."""
    last = {key: [run.valid[max(run.valid)] for run in group if run.valid] for key, group in found.items()}
    if not (last.get("lln") and last.get("softmax")):
        return []
    verdict = judge_pair(last["lln"], last["softmax"], Bound(FOLLOWS, at_most=True), ratio=True)
    return [claim("LLN's loss follows that of softmax", f"a ratio of at most {FOLLOWS}", verdict)]


def _smoothed(x: list[int], y: list[float], parts: int = 20) -> tuple[list[int], list[float]]:
    width = max(1, len(x) // parts)
    starts = range(0, len(x) - width + 1, width)
    return [x[i + width - 1] for i in starts], [fmean(y[i : i + width]) for i in starts]


def _loss_scales(runs: Sequence[LoggedRun]) -> Record:
    """Fig. 8b and 10b: the inverse loss scale in fp16."""
    curves: list[Record] = []
    largest: dict[str, list[float]] = {}  # of each run
    fixed = sorted({exponent(run) for run in runs} - {0})
    styles = {0: "-", **dict(zip(fixed, cycle(("--", ":")), strict=False))}
    for run in runs:
        updates, scales = run.series("loss_scale")
        inverse = [1 / scale for scale in scales]
        alpha = exponent(run)
        label = ANALYSED[run.method].label + (f", α = {alpha:g}" if alpha else "")
        curves.append(curve(label, *_smoothed(updates, inverse), run.method, style=styles[alpha]))
        largest.setdefault(label, []).append(max(inverse[len(inverse) // 4 :]))
    windows = sorted({run.scale_window for run in runs})
    checks = []
    flat, steep = (f"LLN, α = {value}" for value in HALF_FIXED)
    if {"LLN", flat, steep} <= largest.keys():
        others = [*largest["LLN"], *largest[flat]]
        checks.append(
            claim(
                f"α = β = {HALF_FIXED[1]} has a much larger inverse scale than {HALF_FIXED[0]} and matching",
                "at least 4 times",
                judge_pair(largest[steep], others, Bound(4, at_most=False), ratio=True),
            )
        )
    if {"LLN", "softmax"} <= largest.keys():
        checks.append(
            claim(
                "LLN's largest inverse loss scale does not exceed softmax's",
                "a ratio of at most 1",
                judge_pair(largest["LLN"], largest["softmax"], Bound(1, at_most=True), ratio=True),
            )
        )
    return {
        "title": "Inverse loss scale in fp16",
        "training": runs[0].training(),
        "panels": [lines("Inverse loss scale", "updates", "1 / loss scale", curves, "linear", "log")],
        "note": f"fp16, scale window of {' or '.join(map(str, windows))} updates; means of 20 parts of the "
        "run, without updates that overflowed. The maximum is over the updates after the first quarter, in "
        "which the scale is found.",
        "checks": checks,
    }


def at_checkpoints(runs: Sequence[LoggedRun], data: PreparedData, minibatches: int) -> Record:
    """R2 against updates, for all parameters and for the mean over the attentions of the layers."""
    for run in runs:
        check_reads_text(checkpoints_of(run.folder)[-1][1], ANALYSED_HERE)
    whole, parts, found = [], [], {}
    for run in {run.method: run for run in reversed(runs)}.values():
        label = ANALYSED[run.method].label
        points: dict[int, dict[str, float]] = {}
        for update, path in checkpoints_of(run.folder):
            print(f"  {label}: update {update:,}", flush=True)
            points[update] = _deviations(load(path, data), data, minibatches)
        found[label] = points
        x = list(points)
        layers = [[value for name, value in one.items() if name != ALL] for one in points.values()]
        whole.append(curve(label, x, [one[ALL] for one in points.values()], run.method, style="o-"))
        parts.append(curve(label, x, [fmean(one) for one in layers], run.method, style="o-"))
    unit = "std over mean"
    return {
        "title": "Noise of gradients at checkpoints",
        "panels": [
            lines("All parameters", "updates", unit, whole),
            lines("Attention, mean of the layers", "updates", unit, parts),
        ],
        "by_layer": {label: {str(x): one for x, one in points.items()} for label, points in found.items()},
        "note": f"Relative deviation of the norm of the gradient over {minibatches} minibatches at "
        "fixed weights: noise without the drift of training.",
    }


def _deviations(trained: Checkpoint, data: PreparedData, count: int) -> dict[str, float]:
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
    runs = [read_run(folder) for folder in options.runs]
    for run in runs:
        if run.method != "lln" or not run.valid:
            raise UserError(f"{shown_path(run.folder)} is no LLN run with a validation loss; leave it out")
    if not any(exponent(run) for run in runs):
        raise UserError("none of the runs has fixed exponents (--lln-alpha, --lln-beta); give some that have")
    publish(options, "fixed-exponents", what_was_read(runs), lambda: _fixed_exponents(runs))


def exponent(run: LoggedRun) -> float:
    """The fixed alpha of a run, 0 for matched ones."""
    return float(run.settings.get("lln_alpha") or 0)


def _fixed_exponents(runs: list[LoggedRun]) -> Record:
    by_exponent = grouped(runs, exponent)
    losses = {alpha: [run.valid[max(run.valid)] for run in group] for alpha, group in by_exponent.items()}
    matched = losses.pop(0.0, [])
    x = sorted(losses)
    y, low, high = ([f(losses[value]) for value in x] for f in (fmean, min, max))
    curves = [curve("fixed", x, y, "lln", style="o-", low=low, high=high)]
    if matched:
        curves.append(
            curve(
                "matched",
                x,
                [fmean(matched)] * len(x),
                "lln",
                style="--",
                low=[min(matched)] * len(x),
                high=[max(matched)] * len(x),
            )
        )
    edge = float(statement("temperature/fixed-exponents")["low"])
    below = min((losses[value] for value in x if value < edge), key=fmean, default=[])
    above = max((losses[value] for value in x if value >= edge), key=fmean, default=[])
    seeds = max(len(found) for found in losses.values())
    checks = []
    if below and above:
        checks.append(
            claim(
                f"loss is higher for α = β below {edge:g} than from there on",
                "accuracy drops there (paper, ViT)",
                judge_pair(below, above, Bound(0, at_most=False), ratio=False),
            )
        )
    close = max(y) - min(y) < TOO_CLOSE
    spread = "; range over seeds" if seeds > 1 else ""
    few = " The losses here are too close to tell the exponents apart: too few updates." if close else ""
    return {
        "title": "LLN with fixed exponents",
        "training": runs[0].training(),
        "panels": [lines("Validation loss", "α = β", runs[0].unit, curves)],
        "note": f"After {max(runs[0].records):,} updates, {number_of(seeds, 'seeds')}{spread}. The paper "
        f"shows accuracies of a ViT.{few}",
        "checks": checks,
    }
