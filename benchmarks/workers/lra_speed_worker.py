"""Measures one case of `lra_speed.py` in its own process; same interface as `lm_cost_worker.py`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.workers.lm_cost_worker import main, measure_steps
from benchmarks.workers.lra_speed_models import TextClassifier


def measure(step: Callable[[TextClassifier, dict[str, Any]], None], case: dict[str, Any]) -> dict[str, Any]:
    """Times, tokens and memory of `step`; the case names the folder of "reviews", or None."""
    reviews = case["reviews"] and Path(case["reviews"])
    return measure_steps(case, partial(TextClassifier, reviews=reviews), step)


MEASURES = {
    "inference": partial(measure, TextClassifier.infer),
    "training": partial(measure, TextClassifier.train_step),
}

if __name__ == "__main__":
    main(MEASURES)
