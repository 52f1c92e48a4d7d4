"""Figures and checks that need no model (`analyse.sh theory`)."""

from argparse import Namespace

from pipeline.errors import UserError
from pipeline.studies.analysis import theory_concentration, theory_gradients, theory_lognormal
from pipeline.studies.analysis.analyse import THEORY
from pipeline.studies.analysis.record import publish

FIGURES = {
    "score-gradients": theory_gradients.score_gradients,
    "bounds": theory_gradients.bounds,
    "temperature": theory_concentration.theorems,
    "kernels": theory_concentration.kernels,
    "softmax-lognormal": theory_lognormal.softmax,
    "sums-of-lognormals": theory_lognormal.sums,
    "densities": theory_lognormal.densities,
    "moment-matching": theory_lognormal.moment_matching,
}
SMALLEST_HEAD, SMALLEST_LENGTH = 2, 32


def run_theory(options: Namespace) -> None:
    """All figures, or those asked for."""
    names = options.only.split(",") if options.only else list(THEORY)
    if unknown := [name for name in names if name not in FIGURES]:
        raise UserError(f"there is no figure {unknown[0]!r}; choose some of {', '.join(THEORY)}")
    if options.head_dim < SMALLEST_HEAD or options.length < SMALLEST_LENGTH:
        raise UserError(
            f"--head-dim must be {SMALLEST_HEAD} or more and --length {SMALLEST_LENGTH} or more; they are "
            f"{options.head_dim} and {options.length}"
        )
    for name in names:
        settings = {"length": options.length, "head_dim": options.head_dim, "seed": 0}
        make = FIGURES[name]
        publish(options, name, settings, lambda make=make, s=settings: make(s["length"], s["head_dim"]))
