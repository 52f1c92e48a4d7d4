"""Landmarks: means over segments of a sequence, and the inverse of the matrix between them."""

import torch
from torch import Tensor

INVERSE_STEPS = 6


def segment_means(x: Tensor, lengths: Tensor, segments: int) -> Tensor:
    """Means over equal segments of each row's real positions; position t lies in `t segments // length`.

    Args:
        x: `(B, H, N, d)`, finite also at padding, which does not enter.
        lengths: `(B,)`, how many positions of each row are real; the others are at its end.
        segments: how many. A segment without positions, as rows shorter than that have, is zero.

    Returns:
        `(B, H, segments, d)`. Time O(N d segments).
    """
    place = torch.arange(x.shape[2], device=x.device)
    segment = place * segments // lengths.clamp(min=1)[:, None]
    member = (segment[:, None] == torch.arange(segments, device=x.device)[:, None]).to(x.dtype)
    return (member / member.sum(-1, keepdim=True).clamp(min=1))[:, None] @ x


def iterative_inverse(a: Tensor) -> Tensor:
    """About the inverse of matrices `(..., m, m)` by six steps of third order (Xiong et al. 2021, eq. 11).

        Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4,  starting at A^T / (largest column sum of A)

    The matrices must be non-negative with spectral radius 1. The start is taken for each matrix, so that
    the rows of a batch do not depend on each other. Time O(m^3).
    """
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    z = a.mT / a.sum(-2).amax(-1)[..., None, None]
    for _ in range(INVERSE_STEPS):
        product = a @ z
        z = 0.25 * z @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
    return z
