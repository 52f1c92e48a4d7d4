"""Softmax over whole rows of keys."""

from torch import Tensor

from .blocks import masked_softmax


def softmax_over_keys(scores: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Weights of keys: softmax over the last dimension, in float32 for half precision; scores' dtype.

    Args:
        scores: `(B, H, N, M)`.
        padding_mask: `(B, M)`, True at keys that weigh exactly 0, or None. A row of padding alone is finite
            but meaningless.
    """
    return masked_softmax(scores, None if padding_mask is None else ~padding_mask[:, None, None])
