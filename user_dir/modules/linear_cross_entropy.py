"""Cross-entropy of a linear layer in O(rows V) memory instead of O(N V).

    loss = sum_i -log softmax(x_i W^T + b)[t_i],   dx = (p - t) W,   dW = (p - t)^T x

(p the probabilities, t one-hot.) There are three ways to compute it:

* In half precision on a GPU with Triton, `fused_loss.py`: the logits stay on the chip.
* In float32, PyTorch's own operator, where there is one (2.13), `rows` rows at a time. It accumulates the
  gradient of W, and returns the loss, in the dtype of x: in half precision a sum over thousands of tokens
  would round or overflow.
* Otherwise `_Chunked`, which does the same with float32 sums.

Both ways in chunks compute the gradients of a chunk together with its loss, so that no logits outlive their
chunk: three matrix products, as many as with all logits at once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype, without_autocast

from . import fused_loss
from .fused_loss import SCALE

ROWS = 512


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int,
    rows: int = ROWS,
) -> Tensor:
    """The summed loss, a scalar in float32 at least.

    Args:
        x: `(N, D)` features.
        weight: `(V, D)`.
        target: `(N,)` indices; those equal to `ignore_index` count for nothing.
        bias: `(V,)` or None.
        rows: how many rows have logits at a time.

    The backward pass raises RuntimeError where derivatives of second order are prepared for (`create_graph`).
    """
    loss = _summed(x, weight, target, bias, ignore_index, rows)
    if loss.requires_grad:
        loss.register_hook(_refuse_second_order)
    return loss


def _refuse_second_order(_: Tensor) -> None:
    """The gradients are constants: their derivatives would be zero."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a chunked loss has no second derivative; use cross_entropy of the logits, or drop create_graph"
        )


def _summed(x, weight, target, bias, ignore_index: int, rows: int) -> Tensor:
    x, weight, bias = _as_autocast(x, weight, bias)
    if fused_loss.computes(x):
        return fused_loss.losses(x, weight, target, bias, ignore_index, rows).sum()
    if x.dtype == accumulation_dtype(x.dtype) and hasattr(F, "linear_cross_entropy"):
        # PyTorch's own choice of the chunk is a few rows where V is large, each a slow product.
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=rows, acc_policy="compact")
        return F.linear_cross_entropy(
            x,
            weight,
            target,
            linear_bias=bias,
            reduction="sum",
            ignore_index=ignore_index,
            options=options,
        )
    if not torch.is_grad_enabled():  # else the gradients would be computed, and dropped
        x, weight, bias = (y if y is None else y.detach() for y in (x, weight, bias))
    return _Chunked.apply(x, weight, bias, target, ignore_index, rows)


def token_losses(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    rows: int = ROWS,
) -> Tensor:
    """The loss of each row, `(N,)` in float32 at least, zero where ignored; arguments as above.

    For evaluation: with gradients most ways would keep all logits.
    """
    x, weight, bias = _as_autocast(x, weight, bias)
    if fused_loss.computes(x):
        return fused_loss.losses(x, weight, target, bias, ignore_index, rows)
    losses = x.new_zeros(len(x), dtype=accumulation_dtype(x.dtype))
    for start in range(0, len(x), rows):
        here = slice(start, start + rows)
        logits = F.linear(x[here], weight, bias).to(losses.dtype)
        kept = {} if ignore_index is None else {"ignore_index": ignore_index}
        losses[here] = F.cross_entropy(logits, target[here], reduction="none", **kept)
    return losses


def _as_autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """In the dtype that autocast gives products; tensors as they are without it."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(y if y is None else y.to(torch.get_autocast_dtype(kind)) for y in tensors)


def target_margins(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, *, ignore_index: int
) -> Tensor:
    """By how much the logit of each row's target exceeds the mean logit, `(N,)`, zero where ignored.

    Label smoothing by epsilon adds epsilon times this to the loss, since the logarithm of the sum drops out:

        (1 - epsilon) (-log p_t) + epsilon mean_w(-log p_w) = -log p_t + epsilon (logit_t - mean_w logit_w)
    """
    wide, kept = accumulation_dtype(x.dtype), target != ignore_index
    index = target.where(kept, 0)
    mean = weight.sum(0, dtype=wide) / len(weight)
    margins = (x.to(wide) * (F.embedding(index, weight).to(wide) - mean)).sum(1)
    if bias is not None:
        margins = margins + bias[index].to(wide) - bias.mean(dtype=wide)
    return margins.where(kept, 0)


class _Chunked(torch.autograd.Function):
    """`(x, weight, bias, target, ignore_index, rows) -> loss`, with sums in float32 at least."""

    @staticmethod
    def forward(ctx, x, weight, bias, target, ignore_index, rows):
        wide, needed = accumulation_dtype(x.dtype), ctx.needs_input_grad[:3]
        ctx.dtype = x.dtype
        if not x.is_cuda:  # which alone has fast products of half precision with sums in float32
            x, weight = x.to(wide), weight.to(wide)
        total = x.new_zeros((), dtype=wide)
        ctx.grads = [
            x.new_zeros(y.shape, dtype=wide) if need else None
            for y, need in zip((x, weight, bias), needed, strict=True)
        ]
        with without_autocast(x.device):
            for start in range(0, len(x), rows):
                here = slice(start, start + rows)
                logits = _product(x[here], weight.T)
                if bias is not None:
                    logits += bias
                kept = (target[here] != ignore_index).unsqueeze(1)
                index = target[here].unsqueeze(1).where(kept, 0)
                probabilities, norm = _softmax(logits)
                total += (norm - logits.gather(1, index)).where(kept, 0).sum()
                if any(needed):
                    errors = probabilities.scatter_add_(1, index, -torch.ones_like(norm))
                    _add_gradients(ctx.grads, errors, kept * SCALE, x, weight, here)
        return total

    @staticmethod
    def backward(ctx, grad):
        grads, ctx.grads = ctx.grads, None
        if grads is None:
            raise RuntimeError("the gradients of a chunked loss were used up by an earlier backward pass")
        scaled = grad / SCALE
        return *(None if x is None else x.mul_(scaled).to(ctx.dtype) for x in grads), None, None, None


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities `(rows, V)` and the logarithm of the sum that they were divided by, `(rows, 1)`.

    The largest probability of a row, at least 1 / V, tells that sum. A separate logsumexp would read and
    write the logits four times more, and they take most of the time.
    """
    largest, at = logits.max(1, keepdim=True)
    probabilities = logits.softmax(1)
    return probabilities, largest - probabilities.gather(1, at).log()


def _add_gradients(
    grads: list, errors: Tensor, scales: Tensor, x: Tensor, weight: Tensor, here: slice
) -> None:
    """Add the gradients of the rows `here`; `errors: (rows, V)` are `p - t`, `scales: (rows, 1)` or 0."""
    grad_x, grad_weight, grad_bias = grads
    scales = scales.to(errors.dtype)
    if grad_bias is not None:
        grad_bias += (scales.T @ errors).squeeze(0)
    scaled = errors if x.dtype == errors.dtype else errors.new_empty(errors.shape, dtype=x.dtype)
    errors = torch.mul(errors, scales, out=scaled)
    if grad_x is not None:
        grad_x[here] = _product(errors, weight)
    if grad_weight is not None and x.dtype == grad_weight.dtype:
        grad_weight.addmm_(errors.T, x[here])
    elif grad_weight is not None:
        grad_weight += _product(errors.T, x[here])


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices, in float32 at least."""
    if a.dtype == accumulation_dtype(a.dtype):
        return a @ b
    return fused_loss.product(a, b)
