"""The evaluators that a study may name, each the function of a module of this package that measures a run.

The modules import torch and fairseq; they are loaded where a run is measured.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from pipeline.training.recipe import Experiment


@dataclass(frozen=True)
class Evaluator:
    """The `module` whose function `measure_run` measures a run, and the `splits` that its data must have."""

    module: str
    splits: tuple[str, ...]


EVALUATORS = {
    "carried": Evaluator("carried_training", ("train", "valid", "test")),
    "copy": Evaluator("copying", ()),
    "glue": Evaluator("glue", ("train", "valid")),
    "image_classification": Evaluator("image_classification", ("train", "valid")),
    "language_model": Evaluator("perplexity", ("train", "valid", "test")),
    "lra": Evaluator("lra", ("train", "valid", "test")),
    "masked_lm": Evaluator("masked_lm", ("train", "valid", "test")),
    "pixels": Evaluator("pixels", ("train", "valid", "test")),
}
"""By the name in a study's YAML."""


@dataclass(frozen=True)
class TrainedRun:
    """A run to measure: its folder, checkpoint, experiment and arguments, and its data (None without)."""

    folder: Path
    checkpoint: Path
    experiment: "Experiment"
    arguments: tuple[str, ...]
    data: Any
    device: "torch.device"


def evaluator(name: str) -> Callable[[TrainedRun], dict[str, Any]]:
    """The function that measures a run: what it returns is the `found` of the record."""
    return importlib.import_module(f"pipeline.evaluation.{EVALUATORS[name].module}").measure_run
