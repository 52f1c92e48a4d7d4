"""LLN's Fig. 10: the loss with fixed exponents and with matched ones (`analyse.sh temperature`)."""

from argparse import Namespace

from pipeline.console import number_of
from pipeline.errors import UserError
from pipeline.files import shown_path
from pipeline.papers import statement
from pipeline.studies.analysis.logs import LoggedRun, read_run, what_was_read
from pipeline.studies.analysis.record import Record, claim, curve, lines, publish
from pipeline.verdicts import Bound, judge_pair

TOO_CLOSE = 0.01  # bits


def run_temperature(options: Namespace) -> None:
    """One figure of all runs given."""
    runs = [read_run(folder) for folder in options.runs]
    for run in runs:
        if run.method != "lln" or not run.valid:
            raise UserError(f"{shown_path(run.folder)} is no LLN run with a validation loss; leave it out")
    if not any(exponent(run) for run in runs):
        raise UserError("none of the runs has fixed exponents (--lln-alpha, --lln-beta); give some that have")
    publish(options, "fixed-exponents", what_was_read(runs), lambda: _figure(runs))


def exponent(run: LoggedRun) -> float:
    """The fixed alpha of a run, 0 for matched ones."""
    return float(run.settings.get("lln_alpha") or 0)


def _figure(runs: list[LoggedRun]) -> Record:
    losses: dict[float, list[float]] = {}
    for run in runs:
        losses.setdefault(exponent(run), []).append(run.valid[max(run.valid)])
    matched = losses.pop(0.0, [])
    x = sorted(losses)
    y, low, high = ([f(losses[value]) for value in x] for f in (_mean, min, max))
    curves = [curve("fixed", x, y, "lln", style="o-", low=low, high=high)]
    if matched:
        curves.append(
            curve(
                "matched",
                x,
                [_mean(matched)] * len(x),
                "lln",
                style="--",
                low=[min(matched)] * len(x),
                high=[max(matched)] * len(x),
            )
        )
    edge = float(statement("temperature/fixed-exponents")["low"])
    below = min((losses[value] for value in x if value < edge), key=_mean, default=[])
    above = max((losses[value] for value in x if value >= edge), key=_mean, default=[])
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


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
