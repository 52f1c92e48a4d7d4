"""Normalisation layers, by the name a configuration gives them."""

import torch
from torch import Tensor, nn

from causal_linear_attention import fused
from causal_linear_attention.chunked import accumulation_dtype
from causal_linear_attention.decoding import (
    decodes,
    normalizes,
    rms_norm,
    rms_norm_backward,
    rms_norm_forward,
)
from causal_linear_attention.transforms import in_transform, transformed

from ..errors import check_choice
from .batch_norm import BatchNorm
from .linear_maps import has_hooks


class RMSNorm(nn.Module):
    """`x / (||x|| D^(-1/2) + 1e-8)` over the last dimension, without parameters.

    TransNormer, Definition D.1, has the epsilon inside the root, `x / sqrt(||x||^2 / D + eps)`; this is the
    authors' code.

    The norm is taken in float32 whatever the input type: 1e-8 would round to 0 in float16. A row of
    zeros stays zero. Its derivative there is 1e8, finite in float32 and bfloat16; float16 cannot hold it, so
    that such a row passes no gradient in float16. The backward pass needs the output, which the next
    layer keeps anyway, and one number a row.

    Attributes:
        kernels: whether kernels compute it where they run; see `choose_kernels`.
    """

    eps = 1e-8
    kernels = True

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; returns the same shape and dtype."""
        if torch.is_grad_enabled() and x.requires_grad and not in_transform():
            return _RMSNorm.apply(x, None, None, 0.0, self.eps, False, self.kernels)[1]
        if self.kernels and (decodes(x) or normalizes(x)):
            return rms_norm(x, self.eps)
        if self.kernels and fused.runs(x):
            return fused.residual(x, None, None, 0.0, self.eps, True, False)[1]
        return _rms_norm(x, self.eps)[0]


BACKENDS_WITH_KERNELS = ("auto", "cpp", "cuda", "triton")
"""Backends of attention with which kernels run beside the causal product, too."""


def choose_kernels(model: nn.Module, backend: str) -> None:
    """Let the parts of the model that may run kernels do so with one of BACKENDS_WITH_KERNELS alone."""
    for part in model.modules():
        if isinstance(getattr(part, "kernels", None), bool):
            part.kernels = backend in BACKENDS_WITH_KERNELS


def is_plain_rms(norm: nn.Module) -> bool:
    """Whether kernels may fuse this norm with its surroundings: an RMSNorm without hooks."""
    return type(norm) is RMSNorm and norm.kernels and not has_hooks(norm)


def _rms_norm(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised rows, and their root mean squares in the dtype that they are computed in."""
    wide = x.to(accumulation_dtype(x.dtype))
    root = torch.linalg.vector_norm(wide, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
    return (wide / (root + eps)).to(x.dtype), root


def rms_norm_of_sum(
    x: Tensor, y: Tensor, seed: Tensor | None, p: float, eps: float | None, *, keep: bool
) -> tuple[Tensor | None, Tensor | None]:
    """`x + dropout(y)` by the kernels, None unless `keep`, and its RMSNorm, None without `eps`.

    For x and y of one shape and dtype for which `fused.runs`; dropout with probability p by a seed.
    """
    if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
        return _RMSNorm.apply(x, y, seed, p, eps, keep, True)[:2]
    total, out, _ = fused.residual(x, y, seed, p, eps or 0.0, eps is not None, keep)
    return (total if keep else None), (None if eps is None else out)


class _RMSNorm(torch.autograd.Function):
    """`(x, y, seed, p, eps, keep, kernels) -> (s, out, r)`: `s = x + dropout(y)`, `out = s / (r + eps)`.

    Differentiated from the output: `(g - out mean(out g) (r + eps) / r) / (r + eps)`. r is an output, too, so
    that derivatives of higher order see that it depends on x. y may be None, and then s is; so are out and r
    without eps.
    """

    @staticmethod
    def forward(ctx, x, y, seed, p, eps, keep, kernels):
        ctx.shape, ctx.p, ctx.eps = x.shape, p, eps
        ctx.compiled, total = "", None
        if kernels:
            ctx.compiled = "cuda" if normalizes(x) else "fused" if fused.runs(x) else ""
        if ctx.compiled == "cuda" and y is None:
            out, root = rms_norm_forward(x, eps)
        elif ctx.compiled:
            total, out, root = fused.residual(x, y, seed, p, eps or 0.0, eps is not None, keep)
        else:
            out, root = _rms_norm(x, eps)
        if eps is None:
            out = root = None
        ctx.save_for_backward(out, root, seed)
        ctx.set_materialize_grads(False)
        return (total if keep else None), out, root

    @staticmethod
    def backward(ctx, grad_sum, grad, grad_root):
        if grad_sum is None and grad is None and grad_root is None:
            return (None,) * 7
        out, root, seed = ctx.saved_tensors
        if (
            ctx.compiled
            and grad_root is None
            and not (torch.is_grad_enabled() or transformed(grad_sum, grad))
        ):
            grad_x, grad_y = _compiled_backward(ctx, grad_sum, grad, out, root, seed)
        else:
            grad_x = grad_sum
            if grad is not None or grad_root is not None:
                normed = _norm_backward(ctx.eps, grad, grad_root, out, root)
                grad_x = normed if grad_sum is None else grad_sum + normed
            grad_y = grad_x
            if seed is not None:
                rows, width = ctx.shape[:-1].numel(), ctx.shape[-1]
                factors = fused.dropout_factors(seed, ctx.p, rows, width, grad_x.dtype)
                grad_y = grad_x * factors.view(ctx.shape)
        return grad_x, (grad_y if ctx.needs_input_grad[1] else None), None, None, None, None, None


def _compiled_backward(ctx, grad_sum, grad, out, root, seed) -> tuple[Tensor, Tensor]:
    if ctx.compiled == "cuda" and seed is None and grad_sum is None:
        grad_x = rms_norm_backward(grad, out, root, ctx.eps)
        return grad_x, grad_x
    if grad is None and seed is None:
        return grad_sum, grad_sum
    given = grad_sum if grad is None else grad
    out, root = (given.new_empty(0),) * 2 if out is None else (out, root)
    grad_x, grad_y = fused.residual_backward(grad_sum, grad, out, root, seed, ctx.p, ctx.eps or 0.0)
    return grad_x, grad_x if seed is None else grad_y


def _norm_backward(
    eps: float, grad: Tensor | None, grad_root: Tensor | None, out: Tensor, root: Tensor
) -> Tensor:
    root = root.view(*out.shape[:-1], 1)
    y, scale = out.to(root.dtype), root + eps
    inverse = scale / root.masked_fill(root == 0, torch.inf)
    wide = torch.zeros_like(y) if grad is None else grad.to(root.dtype)
    along = (wide * y).mean(-1, keepdim=True) * inverse
    result = torch.addcmul(wide, y, along, value=-1) / scale
    if grad_root is not None:
        result = result + grad_root.view_as(root) * y * inverse / y.shape[-1]
    if out.dtype == torch.float16:
        result = result.masked_fill(root == 0, 0.0)
    return result.to(out.dtype)


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


def over_root(x: Tensor, floor: Tensor) -> Tensor:
    """`x sqrt(D) / sqrt(|x|^2 + floor^2)` over the last dimension, D wide, in three operators; on a CPU."""
    root = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(floor)
    return torch.addcdiv(_ZERO, x, root, value=x.shape[-1] ** 0.5)


_ZERO = torch.zeros((), dtype=torch.float32, device="cpu")


class WeightedRMSNorm(nn.RMSNorm):
    """`w x / sqrt(mean x^2 + 1e-6)` over the last dimension, w one number per channel.

    Zhang and Sennrich 2019, with the epsilon of RetNet's code.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)
        # Not a buffer, which would be moved.
        self._floor = torch.tensor((width * self.eps) ** 0.5, dtype=torch.float32, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        """Any shape `(..., D)`; returns the same shape and dtype; computed in float32 for half precision."""
        if x.is_cpu and decodes(x):
            return over_root(x, self._floor) * self.weight
        wide = accumulation_dtype(x.dtype)
        out = nn.functional.rms_norm(x.to(wide), self.normalized_shape, self.weight.to(wide), self.eps)
        return out.to(x.dtype)


NORMS = {
    "rmsnorm": lambda width: RMSNorm(),
    "layernorm": LayerNorm,
    "weighted_rmsnorm": WeightedRMSNorm,
    "scalenorm": lambda width: ScaleNorm(),
    "batchnorm": BatchNorm,
}


def build_norm(name: str, width: int) -> nn.Module:
    """The norm called `name` over `width` channels; raises UserError for an unknown name."""
    check_choice("unknown norm", name, NORMS)
    return NORMS[name](width)
