"""Trained models on held-out data, and the evaluators that a study may name.

Each is the function of a module of this package that measures a run. The modules import torch and fairseq;
they are loaded where a run is measured.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Evaluator:
    """The `function` of a `module` that measures runs of fairseq's `tasks`, and the `splits` it needs."""

    module: str
    splits: tuple[str, ...]
    tasks: tuple[str, ...]
    function: str = "measure_run"


PPL_SCRIPT, SAMPLER = "scripts/eval_ppl.sh", "scripts/sample_images.sh"
"""Commands, as messages and what they write name them."""

TEXTS = ("language_modeling", "carried_language_modeling")
EVALUATORS = {
    "carried": Evaluator("carried_state", ("train", "valid", "test"), TEXTS),
    "copy": Evaluator("accuracy", (), ("copy",), "measure_copying"),
    "glue": Evaluator("glue", ("train", "valid"), ("sentence_prediction",)),
    "image_classification": Evaluator(
        "accuracy", ("train", "valid"), ("image_classification",), "measure_images"
    ),
    "language_model": Evaluator("perplexity", ("train", "valid", "test"), TEXTS),
    "lra": Evaluator("accuracy", ("train", "valid", "test"), ("lra",), "measure_lra"),
    "masked_lm": Evaluator("perplexity", ("train", "valid", "test"), ("masked_lm",), "measure_masked_lm"),
    "recall": Evaluator("recall", (), ("recall",)),
    "pixels": Evaluator("pixels", ("train", "valid", "test"), ("pixels",)),
}
"""By the name in a study's YAML."""


@dataclass(frozen=True)
class TrainedRun:
    """A run to measure: its folder, checkpoint and arguments, and its data (None without)."""

    folder: Path
    checkpoint: Path
    arguments: tuple[str, ...]
    data: Any
    device: "torch.device"


def evaluator(name: str) -> Callable[[TrainedRun], dict[str, Any]]:
    """The function that measures a run: what it returns is the `found` of the record."""
    chosen = EVALUATORS[name]
    return getattr(importlib.import_module(f"{__name__}.{chosen.module}"), chosen.function)
