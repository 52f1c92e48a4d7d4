"""Inputs for the operator's kernels, the definition's results, and how far kernels may be from them."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from causal_linear_attention.chunked import normalized
from causal_linear_attention.reference import quadratic


def draw(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    normalize: bool,
    state: bool = True,
    strides: str = "dense",
    group: int = 1,
) -> tuple[Tensor | None, ...]:
    """q, k, v, state, and the gradients of the output and of the final state.

    `strides` is how q, k, v and the output's gradient lie in memory; `group` heads of q share one of k.
    """
    batch, heads, length, dim, width = shape

    def rows(columns: int, heads: int = heads) -> Tensor:
        return torch.randn(batch, heads, length, columns, dtype=torch.float64)

    def laid(x: Tensor) -> Tensor:
        x = x.to(dtype)
        if strides == "projected":  # (B, N, H, D), as a projection leaves it
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if strides == "sliced":
            return torch.cat([x, x[..., :1]], -1)[..., : x.shape[-1]]
        if strides == "columns":
            return x.transpose(2, 3).contiguous().transpose(2, 3)
        return x

    q, k, v = rows(dim, group * heads), rows(dim), rows(width)
    if normalize:  # a denominator near zero says nothing about a kernel
        q, k = q.abs() + 0.1, k.abs() + 0.1
    wide = torch.promote_types(dtype, torch.float32)
    initial = torch.rand(batch, heads, dim, width + normalize, dtype=wide) if state else None
    grad = rows(width, group * heads)
    grad_state = torch.randn(batch, heads, dim, width + normalize, dtype=wide)
    return *map(laid, (q, k, v)), initial, laid(grad), grad_state


def run(function: Callable, q, k, v, state, grad, grad_state, log_decay=None) -> list[Tensor]:
    """Output, final state and the gradients of q, k, v, the state and log_decay given to `function`."""
    given = [None if x is None else x.detach().requires_grad_() for x in (q, k, v, state, log_decay)]
    leaves = [x for x in given if x is not None]
    out, final = function(*(given if log_decay is not None else given[:4]))
    loss = (out.double() * grad.double()).sum() + (final.double() * grad_state.double()).sum()
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [out.detach(), final.detach(), *grads]


def definition(q, k, v, state, grad, grad_state, normalize: bool, log_decay=None, scale=1.0) -> list[Tensor]:
    """The results of `run` by the definition, in the type of q."""
    count = q.shape[1] // max(k.shape[1], 1)

    def attend(q, k, v, state, log_decay=None):
        k, v, state, log_decay = (
            None if x is None else x.repeat_interleave(count, 1) for x in (k, v, state, log_decay)
        )
        out, final = of_all(q, k, v, state, log_decay)
        return scale * out, final[:, ::count]

    def of_all(q, k, v, state, log_decay):
        if log_decay is not None:
            log_decay = log_decay.to(q.dtype)
        if normalize:
            return normalized(quadratic, q, k, v, 1e-6, state, log_decay)
        return quadratic(q, k, v, None if state is None else state.to(q.dtype), log_decay)

    return run(attend, q, k, v, state, grad, grad_state, log_decay)


def definition_of_packed(
    q, k, v, states, grad, grad_states, normalize: bool, log_decay=None, scale=1.0, *, bounds: Sequence[int]
):
    """The results of `definition` for each sequence by itself."""
    found = []
    for number, (begin, end) in enumerate(pairwise(bounds)):
        rows = [x[:, :, begin:end] for x in (q, k, v, grad)]
        state, grad_state = (None if x is None else x[number : number + 1] for x in (states, grad_states))
        decay = None if log_decay is None else log_decay[:, :, begin:end]
        found.append(definition(*rows[:3], state, rows[3], grad_state, normalize, decay, scale))
    of_rows = (0, 2, 3, 4, 6)  # the rest are states
    return [torch.cat(x, 2 if which in of_rows else 0) for which, x in enumerate(zip(*found, strict=True))]


def assert_exact_enough(
    found: Sequence[Tensor],
    given: Sequence[Tensor | None],
    normalize: bool,
    shape: tuple[int, ...],
    bounds: Sequence[int] | None = None,
    log_decay: Tensor | None = None,
    scale: float = 1.0,
) -> None:
    """The error is at most twice that of the plain formula in the same dtype, for packed sequences too.

    `log_decay` is `(B, H, N)` in float64, and there is a state then.
    """
    wide = [None if x is None else x.double() for x in given]
    define = definition if bounds is None else partial(definition_of_packed, bounds=bounds)
    truth, plain = (define(*x, normalize, log_decay, scale) for x in (wide, given))
    dtype = given[0].dtype
    # Below, with one feature the normalised output hardly depends on q and k: the rest is rounding.
    floor = 4 * torch.finfo(dtype).eps * float(given[4].norm())
    for which, (f, t, p) in enumerate(zip(found, truth, plain, strict=False)):
        assert f.shape == t.shape and f.isfinite().all()
        error, allowed = float((f.double() - t).norm()), 2 * float((p.double() - t).norm())
        # float32 states of 16-bit inputs: weighted rows are two parts of 8 bits or more.
        rounding = (8 if f.dtype != dtype else 2) * torch.finfo(f.dtype).eps * float(t.norm())
        if which == 6:  # a difference of sums over 512 rows
            rounding = (16 if dtype == torch.float32 else 6) * torch.finfo(dtype).eps * float(t.norm())
        if normalize and which == 5 and max(shape[3:]) > 128:
            # Wide heads take the slopes, whose sums are the last column, from the output, which is rounded.
            rounding += torch.finfo(dtype).eps * float(t[..., -1].norm())
        assert error <= allowed + rounding + floor * (1 in shape[3:])
