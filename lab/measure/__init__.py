"""Trained models on held-out data, and the measures that a study may name.

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
class Measure:
    """The `function` of a `module` that measures runs of fairseq's `tasks`, and the `splits` it needs.

    `figures` are the paths of its figures, separated by spaces; `*` stands for names that the run decides.
    Accuracies are in percent, but for the paths in `shares`.
    The module `extras` of lab/publish has the tables and pictures that only this measure shows (EXTRAS), for
    studies with the axes `needs`.
    A measure that `needs_start` compares the run with the checkpoint it started from.
    """

    module: str
    splits: tuple[str, ...]
    tasks: tuple[str, ...]
    figures: str
    function: str = "measure_run"
    extras: str = ""
    needs: tuple[str, ...] = ()
    shares: str = ""
    needs_start: bool = False


TEXTS = ("language_modeling", "carried_language_modeling")
OF_A_MODEL = "architecture parameters"
OF_ANSWERS = "examples correct accuracy loss_bits"


def each(groups: str, names: str) -> str:
    """The paths `group.name` of all `groups` and `names`."""
    return " ".join(f"{group}.{name}" for group in groups.split() for name in names.split())


OF_A_LOSS = "tokens loss_nats_per_token perplexity_per_token perplexity_per_word"
OF_A_SPLIT = "bits perplexity unigram_bits"
MEASURES = {
    "carried": Measure(
        "carried_state",
        ("train", "valid", "test"),
        TEXTS,
        f"parameters unigram_perplexity {each('apart carried', OF_A_LOSS)} "
        f"{each('carried', 'streams longest remark buckets.*')}",
        extras="language_models",
        needs=("model", "segment", "way"),
    ),
    "copy": Measure(
        "accuracy",
        (),
        ("copy",),
        "parameters examples counted loss_nats converged converged_at accuracy exact by_position.* "
        "free_accuracy free_exact free_by_position.*",
        "measure_copying",
        shares="accuracy exact by_position.* free_accuracy free_exact free_by_position.*",
    ),
    "glue": Measure(
        "glue",
        ("train", "valid"),
        ("sentence_prediction",),
        f"{OF_A_MODEL} task partial examples.* cut pretraining_updates learning_rate dev.* metric score "
        "predictions* majority majority.* best_update",
        extras="encoders",
        needs=("task",),
        needs_start=True,
    ),
    "image_classification": Measure(
        "accuracy",
        ("train", "valid"),
        ("image_classification",),
        f"{OF_A_MODEL} {OF_ANSWERS} attention training_images split most_frequent_class gradient_norm "
        "largest_inverse_loss_scale exponents.*",
        "measure_images",
        extras="images",
        needs=("method",),
    ),
    "language_model": Measure(
        "perplexity",
        ("train", "valid", "test"),
        TEXTS,
        f"{OF_A_MODEL} best_update "
        f"{each('valid test', f'{OF_A_SPLIT} tokens words nats perplexity_per_word')}",
        extras="language_models",
        needs=("method",),
    ),
    "lra": Measure(
        "accuracy",
        ("train", "valid", "test"),
        ("lra",),
        f"parameters {OF_ANSWERS} most_frequent best_update chosen_on_valid published_sizes",
        "measure_lra",
    ),
    "masked_lm": Measure(
        "perplexity",
        ("train", "valid", "test"),
        ("masked_lm",),
        f"{OF_A_MODEL} best_update {each('valid test', f'{OF_A_SPLIT} masked_tokens')}",
        "measure_masked_lm",
        extras="encoders",
        needs=("method",),
    ),
    "pixels": Measure(
        "pixels",
        ("train", "valid", "test"),
        ("pixels",),
        f"{OF_A_MODEL} attention images.* bits_per_dimension.* without_a_model.* pictures.*",
        extras="images",
        needs=("method",),
    ),
    "recall": Measure(
        "accuracy",
        (),
        ("recall",),
        "parameters examples counted loss_nats accuracy exact by_pairs.* state_numbers",
        "measure_recall",
        extras="recall",
        needs=("method",),
        shares="accuracy exact by_pairs.*",
    ),
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


def measuring(name: str) -> Callable[[TrainedRun], dict[str, Any]]:
    """The function that measures a run and returns the `found` of its record."""
    chosen = MEASURES[name]
    return getattr(importlib.import_module(f"{__name__}.{chosen.module}"), chosen.function)
