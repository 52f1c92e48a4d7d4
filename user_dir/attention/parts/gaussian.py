"""The Gaussian kernel in place of softmax (Chen et al. 2021, Skyformer)."""

from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype


def scaled(x: Tensor) -> Tensor:
    """`x: (..., d)` times d^(-1/4), in float32 for half precision."""
    return x.to(accumulation_dtype(x.dtype)) * x.shape[-1] ** -0.25


def gaussian_kernel(a: Tensor, b: Tensor) -> Tensor:
    """`exp(-|a_i - b_j|^2 / 2)` of `(..., N, d)` and `(..., M, d)`: `(..., N, M)`, at most 1."""
    squares = 0.5 * (a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).mT)
    return (a @ b.mT - squares).clamp(max=0).exp()
