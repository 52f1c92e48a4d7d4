"""Measures how fast one way draws images, in its own process; started by `image_cost.py`.

Same interface as `lm_cost_worker.py`.
"""

import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.memory import PeakMemory
from benchmarks.workers.image_models import build_image_model
from benchmarks.workers.lm_cost_worker import main, timed
from pipeline.evaluation.image_samples import draw, uniforms
from pipeline.methods import Size
from pipeline.reports.costs.image_cost import WAYS
from user_dir.models import PixelModel

WARM_UP = 8  # bytes
SHARES = (8, 2, 1)  # of the bytes: the lengths whose forward pass is timed
REPEATS = 3


def measure_sampling(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds for drawing `batch` images, whether that is an estimate, and the peak memory in bytes.

    "spent_s" is how long the measuring took.
    """
    device, batch = case["device"], case["batch"]
    model, task = build_image_model(case["architecture"], case["images"], Size(**case["size"]), device)
    dims, eos = task.shape.dims, task.dictionary.eos()
    given = torch.zeros(batch, 0, dtype=torch.long, device=device)
    chance = uniforms(1, range(batch), dims).to(device)
    recompute = WAYS[case["architecture"]].recompute
    few = min(WARM_UP, dims)
    draw(model, eos, few, given, chance[:, :few], recompute)
    meter, begin = PeakMemory(device), time.monotonic()
    if recompute:
        seconds = estimated_seconds(model, eos, dims, batch, device)
    else:
        seconds = timed(partial(draw, model, eos, dims, given, chance), device)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": seconds,
        "estimated": recompute,
        "spent_s": time.monotonic() - begin,
        "peak_bytes": meter.bytes(),
    }


@torch.inference_mode()
def estimated_seconds(model: PixelModel, eos: int, dims: int, batch: int, device: str) -> float:
    """Seconds of forward passes over all prefixes of 1 to `dims` bytes, from those of three lengths."""
    times = {}
    for length in sorted({max(1, dims // share) for share in SHARES}):
        run = partial(model, torch.full((batch, length), eos, device=device))
        times[length] = statistics.median(timed(run, device) for _ in range(REPEATS))
    return sum_of_parabola(times, dims)


def sum_of_parabola(points: dict[int, float], count: int) -> float:
    """The sum over n = 1 to `count` of the parabola through three `points`."""
    coefficients = np.polyfit(list(points), list(points.values()), len(points) - 1)
    return float(np.polyval(coefficients, np.arange(1, count + 1)).sum())


MEASURES = {"sampling": measure_sampling}

if __name__ == "__main__":
    main(MEASURES)
