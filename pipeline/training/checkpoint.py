"""What a fairseq checkpoint says about its model, read with torch's safe loader only."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from user_dir.checks.checkpoints import UNREADABLE, read_safely

EMBEDDING = "decoder.embed_tokens."
# By the task: what models that read no text are of.
NOT_TEXT = {"lra": "Long Range Arena", "pixels": "images", "image_classification": "images"}


@dataclass(frozen=True)
class CheckpointInfo:
    """What an evaluation must know about a language model."""

    path: Path
    architecture: str
    tokens_per_sample: int
    max_positions: int
    vocabulary: int | None
    updates: int

    def check_dictionary(self, data: PreparedData, size: int) -> None:
        """UserError if the `size` entries of a corpus' dictionary are not those of the training."""
        if self.vocabulary not in (None, size):
            raise UserError(
                f"{data.dictionary} has {size} entries, but {self.path} was trained with "
                f"{self.vocabulary}; give the data folder with the dictionary of its training"
            )
        trained_with = self.path.parent / "dict.txt"
        if trained_with.is_file() and trained_with.read_bytes() != data.dictionary.read_bytes():
            raise UserError(
                f"{data.dictionary} differs from {trained_with}, with which {self.path.name} was "
                "trained; give the data folder with that dictionary"
            )


def read_checkpoint(path: Path) -> CheckpointInfo:
    """Look into a checkpoint of a language model; UserError if it is none, or damaged."""
    state, configuration = load_safely(path)
    if any(key.startswith("encoder.") for key in state["model"]):
        raise UserError(f"{path} holds an encoder, no language model; evaluate it with scripts/eval_mlm.sh")
    if not any(key.startswith("decoder.") for key in state["model"]):
        raise UserError(f"{path} holds no language model")
    with readable(path):
        model, task = sections(configuration)
        tokens_per_sample = int(task.get("tokens_per_sample") or model["tokens_per_sample"])
        return CheckpointInfo(
            path=path,
            architecture=str(model.get("_name") or model.get("arch")),
            tokens_per_sample=tokens_per_sample,
            max_positions=int(model.get("max_target_positions") or tokens_per_sample),
            vocabulary=embedding_rows(state["model"]),
            updates=updates(state),
        )


def check_reads_text(path: Path, done: str) -> None:
    """UserError for a model of Long Range Arena or of images, which cannot be `done`, such as "exported"."""
    configuration = load_safely(path)[1]
    with readable(path):
        subject = NOT_TEXT.get(sections(configuration)[1].get("_name"))
    if subject:
        raise UserError(
            f"{path} holds a model of {subject}; only language models and RoBERTa encoders can be {done}"
        )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises UserError where what a checkpoint holds is not laid out as fairseq does it."""
    try:
        yield
    except UserError:
        raise
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OmegaConfBaseException):
        raise UserError(f"{path} {UNREADABLE}") from None


def updates(state: Mapping[str, Any]) -> int:
    """The number of updates behind the weights."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates", 0)


def load_safely(path: Path) -> tuple[Mapping[str, Any], Any]:
    """A checkpoint and the configuration in it; UserError if it is none, damaged, or holds code.

    Only tensors and plain values are read; a pickle that would run code raises UserError.
    """
    state = read_safely(path)
    return state, state.get("cfg") or state.get("args")


def sections(configuration: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's and the task's settings of a configuration, new style or old."""
    if isinstance(configuration, Namespace):
        return vars(configuration), vars(configuration)
    settings = OmegaConf.create(configuration, flags={"allow_objects": True})
    parts = OmegaConf.to_container(settings, resolve=False)
    model, task = (parts.get(key) or {} for key in ("model", "task"))
    if isinstance(model, Namespace):
        model = vars(model)
    return {key: value for key, value in model.items() if not is_reference(value)}, task


def default_settings(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What an architecture of the plugin has where nothing is given but the layer plan of `settings`."""
    config = MODEL_DATACLASS_REGISTRY[architecture]()
    for plan in {"decoder_attention", "encoder_attention"} & set(settings):
        setattr(config, plan, settings[plan])
    MODEL_REGISTRY[architecture].fill_in_options(config)
    return vars(config)


def is_reference(value: Any) -> bool:
    """Whether a setting only points at another one, such as `${task.tokens_per_sample}`."""
    return isinstance(value, str) and value.startswith("${")


def embedding_rows(weights: Mapping[str, torch.Tensor]) -> int | None:
    """The size of the input vocabulary, None if the model has other embeddings than fairseq's."""
    if f"{EMBEDDING}weight" in weights:
        return weights[f"{EMBEDDING}weight"].shape[0]
    clusters = [
        tensor.shape[0]
        for name, tensor in weights.items()
        if name.startswith(f"{EMBEDDING}embeddings.") and name.endswith(".0.weight")
    ]
    return sum(clusters) or None
