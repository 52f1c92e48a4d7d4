"""The model that is exported, built again from its checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from torch import nn

from pipeline.errors import UserError
from pipeline.training.checkpoint import load_safely
from pipeline.training.encoder_checkpoint import load_encoder, read_dictionary, read_encoder
from user_dir.models.language_model import LinearAttentionLM
from user_dir.models.stack import planned_layers


@dataclass(frozen=True)
class Source:
    """A model in evaluation mode with the configuration `cfg` it was built from.

    `kind` is "CausalLM" or "MaskedLM", `plan` the names of each layer's attentions.
    """

    model: nn.Module
    cfg: Any
    dictionary: Dictionary
    kind: str
    plan: list[tuple[str, ...]]

    @property
    def side(self) -> str:
        """What the fields of `cfg` begin with."""
        return "decoder" if self.kind == "CausalLM" else "encoder"

    @property
    def stack(self) -> nn.Module:
        """The embeddings and layers."""
        return self.model.decoder if self.kind == "CausalLM" else self.model.encoder.sentence_encoder


def load_source(checkpoint: Path) -> Source:
    """Build the model and load its weights; UserError for what is no model of this project."""
    weights = load_safely(checkpoint)[0]["model"]
    if any(key.startswith("encoder.") for key in weights):
        dictionary = read_dictionary(checkpoint.parent)
        model = load_encoder(read_encoder(checkpoint), dictionary)
        return make_source(model, model.args, dictionary, "MaskedLM")
    if not (checkpoint.parent / "dict.txt").is_file():
        raise UserError(f"{checkpoint.parent / 'dict.txt'} is missing; it belongs beside the checkpoint")
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(checkpoint.parent)}
    )
    if not isinstance(model, LinearAttentionLM):
        raise UserError(
            f"{checkpoint} holds a {type(model).__name__}, which is no language model of this project"
        )
    return make_source(model.eval(), cfg.model, task.source_dictionary, "CausalLM")


def make_source(model: nn.Module, cfg: Any, dictionary: Dictionary, kind: str) -> Source:
    """Of a model and the configuration it was built from; `kind` as in `Source`."""
    side = "decoder" if kind == "CausalLM" else "encoder"
    plan = planned_layers(cfg, side, type(model).default_plan(getattr(cfg, f"{side}_layers")))
    return Source(model, cfg, dictionary, kind, plan)
