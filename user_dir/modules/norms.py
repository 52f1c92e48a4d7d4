"""Normalisation layers, by the name a configuration gives them."""

import torch
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype
from causal_linear_attention.decoding import (
    decodes,
    normalizes,
    rms_norm,
    rms_norm_backward,
    rms_norm_forward,
)

from ..errors import check_choice
from .batch_norm import BatchNorm


class RMSNorm(nn.Module):
    """`x / (||x|| D^(-1/2) + 1e-8)` over the last dimension, without parameters.

    TransNormer, Definition D.1, has the epsilon inside the root, `x / sqrt(||x||^2 / D + eps)`; this is the
    authors' code.

    The norm is taken in float32 whatever the input type: 1e-8 would round to 0 in float16. A row of
    zeros stays zero. Its derivative there is 1e8, finite in float32 and bfloat16; float16 cannot hold it, so
    that such a row passes no gradient in float16. The backward pass needs the output, which the next
    layer keeps anyway, and one number a row.
    """

    eps = 1e-8

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; returns the same shape and dtype."""
        if torch.is_grad_enabled() and x.requires_grad:
            return _RMSNorm.apply(x, self.eps)[0]
        if decodes(x) or normalizes(x):
            return rms_norm(x, self.eps)
        return _rms_norm(x, self.eps)[0]


def _rms_norm(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised rows, and their root mean squares in the dtype that they are computed in."""
    wide = x.to(accumulation_dtype(x.dtype))
    root = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).mul_(x.shape[-1] ** -0.5)
    return (wide / (root + eps)).to(x.dtype), root


class _RMSNorm(torch.autograd.Function):
    """`y = x / (r + eps)`, differentiated from y: `(g - y mean(y g) (r + eps) / r) / (r + eps)`.

    r is an output, too, so that derivatives of higher order see that it depends on x.
    """

    @staticmethod
    def forward(ctx, x, eps):
        ctx.compiled = normalizes(x)
        out, root = rms_norm_forward(x, eps) if ctx.compiled else _rms_norm(x, eps)
        ctx.save_for_backward(out, root)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return out, root

    @staticmethod
    def backward(ctx, grad, grad_root):
        out, root = ctx.saved_tensors
        if ctx.compiled and grad_root is None and not torch.is_grad_enabled():
            return rms_norm_backward(grad, out, root, ctx.eps), None
        root = root.view(*out.shape[:-1], 1)
        y, scale = out.to(root.dtype), root + ctx.eps
        inverse = scale / root.masked_fill(root == 0, torch.inf)
        wide = torch.zeros_like(y) if grad is None else grad.to(root.dtype)
        along = (wide * y).mean(-1, keepdim=True) * inverse
        result = torch.addcmul(wide, y, along, value=-1) / scale
        if grad_root is not None:
            result = result + grad_root.view_as(root) * y * inverse / y.shape[-1]
        if out.dtype == torch.float16:
            result = result.masked_fill(root == 0, 0.0)
        return result.to(out.dtype), None


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm computed in float32 for half precision inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape `(..., D)`; returns the same shape and dtype."""
        if x.dtype not in (torch.float16, torch.bfloat16):
            return super().forward(x)
        weight, bias = self.weight.float(), self.bias.float()
        out = nn.functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return out.to(x.dtype)


class ScaleNorm(nn.Module):
    """`g x / sqrt(mean x^2 + 1e-5)` over the last dimension, g one number (FLASH, Hua et al. 2022).

    Computed in float32 for half precision. The parameter has the name of the authors' of TransNormer.
    """

    eps = 1e-5

    def __init__(self) -> None:
        super().__init__()
        self.scala = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; returns the same shape and dtype."""
        wide = x.to(accumulation_dtype(x.dtype))
        scale = self.scala.to(wide.dtype) * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (wide * scale).to(x.dtype)


class GatedRMSNorm(RMSNorm):
    """`s * rms(x) * sigmoid(g * x)`, a scale s and a gate g per channel (ReLA, Zhang et al. 2021, eq. 8).

    Both start at one. Computed in float32 for half precision.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.gate = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape `(..., D)`; returns the same shape and dtype."""
        wide = x.to(accumulation_dtype(x.dtype))
        scale, gate = self.scale.to(wide.dtype), self.gate.to(wide.dtype)
        return (scale * super().forward(wide) * torch.sigmoid(gate * wide)).to(x.dtype)


NORMS = {
    "rmsnorm": lambda width: RMSNorm(),
    "layernorm": LayerNorm,
    "scalenorm": lambda width: ScaleNorm(),
    "batchnorm": BatchNorm,
}


def build_norm(name: str, width: int) -> nn.Module:
    """The norm called `name` over `width` channels; raises UserError for an unknown name."""
    check_choice("unknown norm", name, NORMS)
    return NORMS[name](width)
