"""A RoBERTa checkpoint: what it is, the flags that build it again, and the model itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from pipeline.errors import UserError
from pipeline.files import sha256_of
from pipeline.training.checkpoint import default_settings, load_safely, sections, updates
from pipeline.training.recipe import as_flag, suggestion
from user_dir.models import LinearAttentionRoberta

ENCODER = "encoder.sentence_encoder."
HEADS = "classification_heads."
TASK_FILE = "glue_task.json"  # beside fine-tuned weights: the task they are for
POSITIONS_BEFORE_THE_FIRST = 2  # fairseq counts positions from the padding index plus one


@dataclass(frozen=True)
class EncoderCheckpoint:
    """The facts about an encoder; `settings` are the fields of its architecture's configuration."""

    path: Path
    architecture: str
    settings: dict[str, Any]
    vocabulary: int
    max_positions: int
    updates: int
    heads: dict[str, int]
    """Classes of each classification head."""

    def flags(self) -> list[str]:
        """`--arch` and the settings that differ from its defaults, as flags of `fairseq-train`."""
        defaults = default_settings(self.architecture, self.settings)
        words = ["--arch", self.architecture]
        for key, value in self.settings.items():
            if value != defaults[key] or key == "encoder_attention":
                words += as_flag(key, value, defaults[key])
        return words

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the file as it was when first asked for, shortened."""
        return sha256_of(self.path)[:12]


def read_encoder(path: Path) -> EncoderCheckpoint:
    """Look into a checkpoint; UserError if it is no RoBERTa that this project has."""
    state, configuration = load_safely(path)
    weights = {newer_name(key): tensor for key, tensor in state["model"].items()}
    names = (f"{ENCODER}embed_tokens.weight", f"{ENCODER}embed_positions.weight")
    if names[0] not in weights:
        raise UserError(f"{path} holds no RoBERTa encoder")
    model, task = sections(configuration)
    architecture = architecture_of(path, model)
    fields = MODEL_DATACLASS_REGISTRY[architecture].__dataclass_fields__
    settings = {key: model[key] for key in fields if key in model and key not in ("_name", "max_positions")}
    if names[1] in weights:
        max_positions = weights[names[1]].shape[0] - POSITIONS_BEFORE_THE_FIRST
    else:
        max_positions = model.get("max_positions") or task["tokens_per_sample"]
    return EncoderCheckpoint(
        path=path,
        architecture=architecture,
        settings=settings,
        vocabulary=weights[names[0]].shape[0],
        max_positions=max_positions,
        updates=updates(state),
        heads=heads_of(weights),
    )


def newer_name(key: str) -> str:
    """The name of a weight today: older RoBERTa checkpoints, the published ones among them, say decoder."""
    return f"encoder.{key.removeprefix('decoder.')}" if key.startswith("decoder.") else key


def architecture_of(path: Path, model: Mapping[str, Any]) -> str:
    """The name under which the project builds the model; fairseq's own RoBERTa is `roberta_softmax`."""
    name = str(model.get("arch") or model.get("_name"))
    if name in ("roberta", "roberta_base", "roberta_large"):
        return "roberta_softmax"
    if name not in encoders():
        raise UserError(
            f"{path} holds a {name}, which is no encoder of this project{suggestion(name, encoders())}"
        )
    return name


def encoders() -> list[str]:
    """The names of the architectures of this project's encoders."""
    return [name for name, kind in MODEL_REGISTRY.items() if issubclass(kind, LinearAttentionRoberta)]


def heads_of(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The classes of each classification head among a model's weights."""
    end = ".out_proj.weight"
    return {
        key.removeprefix(HEADS).removesuffix(end): tensor.shape[0]
        for key, tensor in weights.items()
        if key.startswith(HEADS) and key.endswith(end)
    }


def read_dictionary(folder: Path) -> Dictionary:
    """The dictionary next to a checkpoint, including the mask."""
    path = folder / "dict.txt"
    if not path.is_file():
        raise UserError(f"{path} is missing; it belongs beside the checkpoint")
    dictionary = Dictionary.load(str(path))
    dictionary.add_symbol("<mask>")
    return dictionary


def count_parameters(checkpoint: EncoderCheckpoint, vocabulary: Path) -> int:
    """Of the pre-trained model: the masked-LM head included, tied weights once, without heads of tasks.

    `vocabulary` is a folder with its dictionary.
    """
    model = build_encoder(checkpoint, read_dictionary(vocabulary))
    return sum(parameter.numel() for parameter in model.parameters())


def build_encoder(checkpoint: EncoderCheckpoint, dictionary: Dictionary) -> LinearAttentionRoberta:
    """The model without its weights."""
    config = MODEL_DATACLASS_REGISTRY[checkpoint.architecture]()
    for key, value in checkpoint.settings.items():
        setattr(config, key, value)
    config.max_positions = checkpoint.max_positions
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    return MODEL_REGISTRY[checkpoint.architecture].build_model(config, task)


def load_encoder(checkpoint: EncoderCheckpoint, dictionary: Dictionary) -> LinearAttentionRoberta:
    """The model with its classification heads, in evaluation mode."""
    if len(dictionary) != checkpoint.vocabulary:
        raise UserError(
            f"the dictionary has {len(dictionary)} entries with the mask, but {checkpoint.path} was trained "
            f"with {checkpoint.vocabulary}; it belongs to another tokeniser"
        )
    model = build_encoder(checkpoint, dictionary)
    state = dict(load_safely(checkpoint.path)[0]["model"])
    for name, classes in checkpoint.heads.items():
        inner = state[f"{HEADS}{name}.dense.weight"].shape[0]
        model.register_classification_head(name, classes, inner)
    model.upgrade_state_dict(state)
    model.load_state_dict(state)
    return model.eval()
