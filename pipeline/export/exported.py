"""The model that is exported, built again from its checkpoint, and what config.json says about it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from torch import nn

from pipeline.errors import UserError
from pipeline.training.checkpoint import load_encoder, read_checkpoint, read_dictionary, read_encoder
from user_dir.models.language_model import LinearAttentionLM
from user_dir.models.options import attention_options
from user_dir.models.stack import is_pre_norm, planned_layers, positions_kind
from user_dir.modules.feed_forward import ACTIVATIONS, default_glu_width

EXPORTED = ("softmax", "elu", "norm", "diag", "lln", "lln_diag")
NORMS = ("layernorm", "rmsnorm", "scalenorm")


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


def load_source(path: Path) -> Source:
    """Build the model and load its weights; UserError for what is no model of this project."""
    checkpoint, dictionary = read_checkpoint(path), read_dictionary(path.parent)
    if any(key.startswith("encoder.") for key in checkpoint.weights):
        model = load_encoder(read_encoder(path), dictionary)
        return make_source(model, model.args, dictionary, "MaskedLM")
    checkpoint = checkpoint.on(path.parent)
    if not isinstance(checkpoint.model, LinearAttentionLM):
        raise UserError(
            f"{path} holds a {type(checkpoint.model).__name__}, which is no language model of this project"
        )
    task = checkpoint.task
    return make_source(checkpoint.model, checkpoint.config.model, task.source_dictionary, "CausalLM")


def make_source(model: nn.Module, cfg: Any, dictionary: Dictionary, kind: str) -> Source:
    """Of a model and the configuration it was built from; `kind` as in `Source`."""
    side = "decoder" if kind == "CausalLM" else "encoder"
    plan = planned_layers(cfg, side, type(model).default_plan(getattr(cfg, f"{side}_layers")))
    return Source(model, cfg, dictionary, kind, plan)


def configuration(source: Source) -> dict[str, Any]:
    """The fields of `LinearAttentionConfig`; UserError for what the modelling file does not have."""
    check_exportable(source)
    cfg, side, stack = source.cfg, source.side, source.stack
    causal = side == "decoder"
    norm = getattr(cfg, f"{side}_norm")
    final = (cfg.decoder_final_norm or norm) if causal else norm
    positions = positions_kind(cfg, *(("sinusoidal", "learned", "none") if causal else ("learned", "none")))
    return {
        "model_type": "linear_attention",
        "vocab_size": len(source.dictionary),
        "hidden_size": getattr(cfg, f"{side}_embed_dim"),
        "num_attention_heads": getattr(cfg, f"{side}_attention_heads"),
        "plan": [list(names) for names in source.plan],
        "causal": causal,
        "attention_options": _attention_options(source),
        **_feed_forward(cfg, side),
        "norm": norm,
        "final_norm": None if stack.layer_norm is None else final,
        "pre_norm": is_pre_norm(cfg, side),
        "positions": positions,
        "max_position_embeddings": cfg.max_target_positions if causal else cfg.max_positions,
        "embedding_scale": stack.embed_scale if causal else 1.0,
        "output_bias": causal and cfg.decoder_output_bias == "learned",
        "head_activation": cfg.activation_fn,
        "tie_word_embeddings": not (
            cfg.no_share_decoder_input_output_embed if causal else cfg.untie_weights_roberta
        ),
        **{name: getattr(cfg, name) for name in ("dropout", "attention_dropout", "activation_dropout")},
        **_special_tokens(source),
    }


def check_exportable(source: Source) -> None:
    """UserError for a model with parts that the modelling file does not have."""
    cfg, side = source.cfg, source.side
    other = sorted({name for names in source.plan for name in names} - set(EXPORTED))
    if other:
        raise UserError(
            f"{other[0]!r} attention cannot be exported; those that can are {', '.join(EXPORTED)}"
        )
    if getattr(cfg, f"{side}_norm") not in NORMS:
        raise UserError(
            f"a model with --{side}-norm batchnorm cannot be exported; choose one of {', '.join(NORMS)}"
        )
    if side == "decoder" and (cfg.adaptive_input or cfg.adaptive_softmax_cutoff):
        raise UserError("adaptive input and adaptive softmax cannot be exported; train with plain embeddings")
    if side == "encoder":
        check_activation(cfg.activation_fn, "activation-fn")
    used = {name for names in source.plan for name in names} & {"lln", "lln_diag"}
    options = attention_options(cfg)
    for name in sorted(used):
        if options[name]["statistics"] == "batch" and not options[name]["alpha"]:
            raise UserError(
                f"{name} attention with statistics 'batch' depends on the rest of the batch and cannot be "
                "exported; train with statistics 'running'"
            )


def check_activation(name: str, flag: str) -> None:
    """UserError for one of fairseq's that the modelling file does not have."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"a model with --{flag} {name} cannot be exported; those that can have {', '.join(ACTIVATIONS)}"
        )


def _attention_options(source: Source) -> dict[str, dict[str, Any]]:
    options = attention_options(source.cfg)
    used = {name for names in source.plan for name in names}
    chosen = {name: dict(options[name]) for name in EXPORTED if name in used}
    for module in source.stack.modules():  # the constants of the moment matching, given or fitted
        scale = getattr(module, "scale", None)
        if isinstance(scale, nn.Module) and hasattr(scale, "sigma"):
            for name in {"lln", "lln_diag"} & set(chosen):
                chosen[name].update(a=scale.a, b=scale.b)
    return chosen


def _feed_forward(cfg: Any, side: str) -> dict[str, Any]:
    kind, width = getattr(cfg, f"{side}_ffn"), getattr(cfg, f"{side}_embed_dim")
    if kind == "glu":
        size, name = cfg.glu_dim or default_glu_width(width), cfg.glu_activation
    else:
        size = getattr(cfg, f"{side}_ffn_embed_dim")
        name = getattr(cfg, f"{side}_ffn_activation", None) or cfg.activation_fn
    return {"feed_forward": kind, "feed_forward_size": size, "feed_forward_activation": name}


def _special_tokens(source: Source) -> dict[str, int]:
    words = source.dictionary
    tokens = {"bos_token_id": words.bos(), "pad_token_id": words.pad(), "eos_token_id": words.eos()}
    return tokens if source.kind == "CausalLM" else {**tokens, "mask_token_id": words.index("<mask>")}


def classifier_settings(source: Source, head: str) -> dict[str, Any]:
    """The fields for the classification head `head`; UserError if there is none of that name."""
    heads = dict(getattr(source.model, "classification_heads", {}))
    if head not in heads:
        there = ", ".join(heads) or "none"
        raise UserError(f"the checkpoint has no classification head {head!r}; those it has: {there}")
    if source.cfg.spectral_norm_classification_head:
        raise UserError("a head with spectral normalisation cannot be exported")
    check_activation(source.cfg.pooler_activation_fn, "pooler-activation-fn")
    classes = heads[head].out_proj.out_features
    return {
        "id2label": {str(number): f"LABEL_{number}" for number in range(classes)},
        "label2id": {f"LABEL_{number}": number for number in range(classes)},
        "num_labels": classes,
        "classifier_size": heads[head].dense.out_features,
        "classifier_activation": source.cfg.pooler_activation_fn,
        "classifier_dropout": source.cfg.pooler_dropout,
        "tie_word_embeddings": False,
    }
