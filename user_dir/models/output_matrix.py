"""The map from a model's features to logits, for callers who never want all logits at once."""

from typing import Any, NamedTuple

from torch import Tensor, nn

from ..errors import UserError


class OutputMatrix(NamedTuple):
    """`logits = features weight^T + bias`; `weight: (V, D)`, `bias: (V,)` or None."""

    weight: Tensor
    bias: Tensor | None


def has_output_matrix(model: nn.Module) -> bool:
    """Whether the logits of a language model, ours or fairseq's, are those of one linear layer."""
    return isinstance(getattr(model.decoder, "output_projection", None), nn.Linear)


def output_matrix(model: nn.Module) -> OutputMatrix:
    """The output matrix of a language model; UserError for an adaptive softmax, which has several."""
    if not has_output_matrix(model):
        raise UserError(
            "the model has an adaptive softmax instead of one output matrix; train it with --criterion "
            "adaptive_loss"
        )
    projection = model.decoder.output_projection
    return OutputMatrix(projection.weight, projection.bias)


def masked_lm_features(
    model: nn.Module, net_input: dict[str, Any], masked: Tensor
) -> tuple[Tensor, OutputMatrix]:
    """The factors of the logits of the `masked` tokens `(B, N)` of an encoder, ours or fairseq's RoBERTa.

    Returns:
        `(masked, D)`, and the matrix of the masked-LM head.
    """
    features, _ = model(**net_input, features_only=True)
    head = model.encoder.lm_head
    x = head.layer_norm(head.activation_fn(head.dense(features[masked])))
    return x, OutputMatrix(head.weight, head.bias)
