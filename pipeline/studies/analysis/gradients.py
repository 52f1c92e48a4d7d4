"""TransNormer's Table 2 and LLN's Fig. 8, from the logs of runs (`analyse.sh gradients`)."""

from argparse import Namespace
from collections.abc import Sequence
from itertools import cycle, pairwise

from pipeline.console import number_of
from pipeline.data.prepared import open_prepared
from pipeline.errors import UserError
from pipeline.methods import ANALYSED
from pipeline.papers import read_table
from pipeline.studies.analysis.gradient_noise import SPLIT, at_checkpoints
from pipeline.studies.analysis.logs import LoggedRun, check_every_update, read_run, what_was_read
from pipeline.studies.analysis.models import mark_of
from pipeline.studies.analysis.record import Record, claim, curve, lines, publish
from pipeline.verdicts import Bound, judge_pair

HALF_FIXED = ("2", "4")
"""The exponents of the group `half` of configs/studies/analysis_runs.yaml that are fixed."""
FOLLOWS = 1.02
"""The ratio of losses up to which one follows the other."""
PARTS = ("all", "after warm-up", "second half")


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
    found: dict[str, list[LoggedRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        found.setdefault(run.method, []).append(run)
    return found


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
                "values": [sum(own[key]) / len(own[key]) for key in found],
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
    return [x[i + width - 1] for i in starts], [sum(y[i : i + width]) / width for i in starts]


def _loss_scales(runs: Sequence[LoggedRun]) -> Record:
    """Fig. 8b and 10b: the inverse loss scale in fp16."""
    curves: list[Record] = []
    largest: dict[str, list[float]] = {}  # of each run
    exponents = sorted({run.settings.get("lln_alpha") for run in runs} - {None})
    styles = {None: "-", **dict(zip(exponents, cycle(("--", ":")), strict=False))}
    for run in runs:
        x, y = run.series("loss_scale")
        alpha = run.settings.get("lln_alpha")
        label = ANALYSED[run.method].label + (f", α = {alpha:g}" if alpha else "")
        curves.append(curve(label, x, [1 / value for value in y], run.method, style=styles[alpha]))
        largest.setdefault(label, []).append(max(1 / value for value in y[len(y) // 4 :]))
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
        "note": f"fp16, scale window of {' or '.join(map(str, windows))} updates; updates that overflowed "
        "have no figure. The first quarter, in which the scale is found, does not count for the maximum.",
        "checks": checks,
    }
