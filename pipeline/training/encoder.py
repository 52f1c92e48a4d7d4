"""RoBERTa encoders: their checkpoints, the flags that build one again, and the model with its heads."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from pipeline.errors import UserError
from pipeline.training.checkpoint import ENCODER, HEADS, Checkpoint, default_settings, read_checkpoint
from pipeline.training.recipe import as_flag, suggestion
from user_dir.models import LinearAttentionRoberta


def read_encoder(path: Path) -> Checkpoint:
    """A checkpoint of an encoder; UserError if it is no RoBERTa that this project has."""
    checkpoint = read_checkpoint(path)
    if f"{ENCODER}embed_tokens.weight" not in checkpoint.weights:
        raise UserError(f"{path} holds no RoBERTa encoder")
    architecture_of(checkpoint)
    return checkpoint


def architecture_of(checkpoint: Checkpoint) -> str:
    """The name under which the project builds an encoder; fairseq's own RoBERTa is `roberta_softmax`."""
    name = checkpoint.architecture
    if name in ("roberta", "roberta_base", "roberta_large"):
        return "roberta_softmax"
    if name not in encoders():
        raise UserError(
            f"{checkpoint.path} holds a {name}, which is no encoder of this project"
            f"{suggestion(name, encoders())}"
        )
    return name


def encoders() -> list[str]:
    """The names of the architectures of this project's encoders."""
    return [name for name, kind in MODEL_REGISTRY.items() if issubclass(kind, LinearAttentionRoberta)]


def flags(checkpoint: Checkpoint) -> list[str]:
    """`--arch` and the settings that differ from its defaults, as flags of `fairseq-train`."""
    architecture = architecture_of(checkpoint)
    settings = encoder_settings(architecture, checkpoint.settings)
    defaults = default_settings(architecture, settings)
    words = ["--arch", architecture]
    for key, value in settings.items():
        if value != defaults[key] or key == "encoder_attention":
            words += as_flag(key, value, defaults[key])
    return words


def encoder_settings(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a model's `settings` that the architecture has, less its positions."""
    fields = MODEL_DATACLASS_REGISTRY[architecture].__dataclass_fields__
    return {key: settings[key] for key in fields if key in settings and key not in ("_name", "max_positions")}


def read_dictionary(folder: Path) -> Dictionary:
    """The dictionary next to a checkpoint, including the mask."""
    path = folder / "dict.txt"
    if not path.is_file():
        raise UserError(f"{path} is missing; it belongs beside the checkpoint")
    dictionary = Dictionary.load(str(path))
    dictionary.add_symbol("<mask>")
    return dictionary


def build_encoder(
    architecture: str, settings: Mapping[str, Any], max_positions: int, dictionary: Dictionary
) -> LinearAttentionRoberta:
    """A model of an architecture with a model's `settings`, as far as it has them; its weights are drawn."""
    config = MODEL_DATACLASS_REGISTRY[architecture]()
    for key, value in encoder_settings(architecture, settings).items():
        setattr(config, key, value)
    config.max_positions = max_positions
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    return MODEL_REGISTRY[architecture].build_model(config, task)


def count_parameters(checkpoint: Checkpoint, vocabulary: Path) -> int:
    """Of the pre-trained model: the masked-LM head included, tied weights once, without heads of tasks.

    `vocabulary` is a folder with its dictionary.
    """
    model = _without_weights(checkpoint, read_dictionary(vocabulary))
    return sum(parameter.numel() for parameter in model.parameters())


def _without_weights(checkpoint: Checkpoint, dictionary: Dictionary) -> LinearAttentionRoberta:
    name = architecture_of(checkpoint)
    return build_encoder(name, checkpoint.settings, checkpoint.max_positions, dictionary)


def load_encoder(checkpoint: Checkpoint, dictionary: Dictionary) -> LinearAttentionRoberta:
    """The model with its classification heads, in evaluation mode."""
    if len(dictionary) != checkpoint.vocabulary:
        raise UserError(
            f"the dictionary has {len(dictionary)} entries with the mask, but {checkpoint.path} was trained "
            f"with {checkpoint.vocabulary}; it belongs to another tokeniser"
        )
    model = _without_weights(checkpoint, dictionary)
    state = dict(checkpoint.state["model"])
    for name, classes in checkpoint.heads.items():
        inner = state[f"{HEADS}{name}.dense.weight"].shape[0]
        model.register_classification_head(name, classes, inner)
    model.upgrade_state_dict(state)
    model.load_state_dict(state)
    return model.eval()
