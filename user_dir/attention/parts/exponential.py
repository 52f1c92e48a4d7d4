"""Causal linear attention with exponential features, in range whatever the exponents are.

    a = alpha q,  b = beta k,  w[i, j] = sum_d exp(a[i, d] + b[j, d]),
    out[i] = sum_j w[i, j] v[j] / sum_j w[i, j]  over j <= i.

With features exp(a) and exp(b) this is linear attention, but the exponentials overflow, and one maximum
for all positions would let a large later key push the earlier ones to zero. Here every product takes its
reference from a running maximum, m[i, d] = max of b[j, d] over j <= i:

    w[i, j] exp(-r[i]) = sum_d exp(a[i, d] + m[p, d] - r[i]) exp(b[j, d] - m[p, d]),  j <= p <= i,
    r[i] = max over d of a[i, d] + m[i, d]

Both factors are at most 1, the largest term of a row is 1, and what becomes zero is below exp(-87) of it;
r cancels in the quotient. Within chunks, pairs of positions are grouped as the secondary chunking of gated
linear attention (Yang et al. 2024) does it, as a tree: blocks of BLOCK positions are summed term by term,
the right half of every larger block attends to its left half, p being the left half's end, and earlier
chunks are held in a sum of shape (D, M + 1) that is rescaled when m grows. O(N D (M + C)) time for chunks
of C; kept for the backward pass are the inputs, the output and, a segment, one sum. Sums are float32
(float64 for float64 inputs).
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_linear_attention import causal_linear_attention_step
from causal_linear_attention.chunked import accumulation_dtype, without_autocast

BLOCK = 4
CHUNK = 64
SEGMENT = 8 * CHUNK
# On a GPU, where each segment costs some two hundred kernel launches, one has so many positions of all rows
# together. The decay between all pairs of its chunks then takes as much memory as the blocks' terms.
POSITIONS = 256 * CHUNK
# The maximum over no keys: finite, so that differences are, and below every exponent.
LOWEST = -1e30
# The logarithm of a sum over no keys, for the backward pass: so large that all weights are zero.
NOTHING = 2e30
# Added to denominators, which are 1 / D or more where any key is visible.
FLOOR = 1e-20


def first_sums(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The sums `(B, H, D, M + 1)` and maxima `(B, H, 1, D)` before the first key; shapes as below."""
    dtype = accumulation_dtype(k.dtype)
    return (
        k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1] + 1, dtype=dtype),
        k.new_full((*k.shape[:2], 1, k.shape[-1]), LOWEST, dtype=dtype),
    )


def causal_exponential_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor | float,
    beta: Tensor | float,
    padding_mask: Tensor | None = None,
    state: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The `out` of the module's docstring, and the state after the last position.

    A key or value that is not finite makes earlier outputs of its segment NaN, too.

    Args:
        q, k: `(B, H, N, D)`; v: `(B, H, N, M)`.
        alpha, beta: numbers, or tensors of one element or one a row, `(B, 1, 1, 1)`; no gradient goes to
            them.
        padding_mask: bool `(B, N)`, True where a key counts for nothing.
        state: the sums and maxima over earlier keys, see `first_sums`.

    Returns:
        `out: (B, H, N, M)` in v's dtype, zero where no key is visible, and the new state.
    """
    total, top = first_sums(k, v) if state is None else state
    out, total, top = ExponentialAttention.apply(q, k, v, alpha, beta, padding_mask, total, top)
    return out, (total, top)


def exponential_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor | float,
    beta: Tensor | float,
    padding_mask: Tensor | None,
    state: tuple[Tensor, Tensor],
    backend: str = "auto",
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`causal_exponential_attention` for N = 1: O(D M) whatever the position, and the recurrence in full.

    backend: of `causal_linear_attention_step`.
    """
    total, top = state
    a, b = q.to(total.dtype) * alpha, k.to(total.dtype) * beta
    if padding_mask is not None:
        b = b.masked_fill(padding_mask[:, None, :, None], -torch.inf)
    new = torch.maximum(top, b).detach()
    phi_q, phi_k = torch.softmax(a + new, -1), torch.exp(b - new)  # what softmax divides by cancels
    total = torch.exp(top - new).mT * total
    phi_q, phi_k, wide = (x.squeeze(2) for x in (phi_q, phi_k, v.to(total.dtype)))
    options = {"normalize": True, "eps": FLOOR, "backend": backend}
    out, total = causal_linear_attention_step(phi_q, phi_k, wide, total, **options)
    return out.unsqueeze(2).to(v.dtype), (total, new)


class ExponentialAttention(torch.autograd.Function):
    """`causal_exponential_attention` and its gradients.

    `(q, k, v, alpha, beta, padding_mask, total, top) -> (out, total, top)`
    """

    @staticmethod
    def forward(ctx, q, k, v, alpha, beta, padding_mask, total, top):
        outs, saved, most = [], [], segment_length(q)
        for start in range(0, q.shape[2], most):
            length = min(most, q.shape[2] - start)
            segment = _segment(q, k, v, alpha, beta, padding_mask, top, start, length)
            saved += [total, top]
            out, log, total = _forward(segment, total)
            # Clones: views would keep all of the segment's maxima, and sums, for the backward pass.
            top = segment.top[:, :, -1:].clone()
            outs.append(out[:, :, :length].to(v.dtype))
            saved.append(log[:, :, :length])
        out = torch.cat(outs, 2) if outs else torch.zeros_like(v)
        ctx.save_for_backward(q, k, v, padding_mask, out, *saved)
        ctx.scales = alpha, beta
        top = top.clone()
        ctx.mark_non_differentiable(top)
        return out, total.clone(), top

    @staticmethod
    def backward(ctx, grad_out, grad_total, _):
        q, k, v, padding_mask, out, *saved = ctx.saved_tensors
        if torch.is_grad_enabled() and saved:
            with without_autocast(q.device):
                return _differentiable(q, k, v, *ctx.scales, padding_mask, *saved[:2], grad_out, grad_total)
        grads = [torch.empty_like(x) for x in (q, k, v)]
        with without_autocast(q.device):
            for start in reversed(range(0, q.shape[2], segment_length(q))):
                log, top, total = saved.pop(), saved.pop(), saved.pop()
                segment = _segment(q, k, v, *ctx.scales, padding_mask, top, start, log.shape[2])
                here = slice(start, start + log.shape[2])
                g, o = (x[:, :, here].to(log.dtype) for x in (grad_out, out))
                cotangent = torch.cat([g, -(g * o).sum(-1, keepdim=True)], -1)
                *parts, grad_total = _backward(segment, log, cotangent, total, grad_total)
                for grad, part, scale in zip(grads, parts, (*ctx.scales, 1.0), strict=True):
                    grad[:, :, here] = part[:, :, : log.shape[2]] * scale
        return *grads, None, None, None, grad_total, None


def _differentiable(q, k, v, alpha, beta, padding_mask, total, top, *cotangents) -> tuple:
    """The same gradients as `backward`, by the recurrence token by token, for derivatives of higher order."""
    # Views: a gradient ends at its own argument, also where one argument is computed from another.
    q, k, v, total = inputs = [x.view_as(x) for x in (q, k, v, total)]
    state, outs = (total, top), []
    for place in range(q.shape[2]):
        here = slice(place, place + 1)
        hidden = None if padding_mask is None else padding_mask[:, here]
        token = (x[:, :, here] for x in (q, k, v))
        out, state = exponential_attention_step(*token, alpha, beta, hidden, state)
        outs.append(out)
    wanted, outputs = [x for x in inputs if x.requires_grad], (torch.cat(outs, 2), state[0])
    found = iter(torch.autograd.grad(outputs, wanted, cotangents, create_graph=True))
    *grads, grad_total = (next(found) if x.requires_grad else None for x in inputs)
    return *grads, None, None, None, grad_total, None


class _Segment(NamedTuple):
    """Some chunks in the accumulation dtype; the last one is filled up with padding."""

    a: Tensor  # (B, H, L, D)
    b: Tensor  # (B, H, L, D), -inf at padding
    v: Tensor  # (B, H, L, M + 1), the last column ones
    top: Tensor  # (B, H, L, D), the running maximum m
    before: Tensor  # (B, H, 1, D), the maximum before the segment
    chunk: int


def segment_length(q: Tensor) -> int:
    """How many positions of `q: (B, H, N, D)` are taken at once."""
    if q.device.type == "cpu":
        return SEGMENT
    return max(SEGMENT, POSITIONS // CHUNK // max(len(q), 1) * CHUNK)


def _segment(q, k, v, alpha, beta, padding_mask, top, start, length) -> _Segment:
    # Contiguous, else most products below copy them.
    q, k, v = (x.narrow(2, start, length).contiguous().to(top.dtype) for x in (q, k, v))
    a, b, v = q * alpha, k * beta, F.pad(v, (0, 1), value=1.0)
    if padding_mask is not None:
        b = b.masked_fill(padding_mask.narrow(1, start, length)[:, None, :, None], -torch.inf)
    chunk = BLOCK
    while chunk < min(length, CHUNK):
        chunk *= 2
    fill = (0, 0, 0, -length % chunk)
    a, b, v = F.pad(a, fill), F.pad(b, fill, value=-torch.inf), F.pad(v, fill)
    return _Segment(a, b, v, torch.maximum(b.cummax(2).values, top), top, chunk)


def _forward(s: _Segment, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`out`, the logarithm of its denominator `(B, H, L, 1)`, and the sums after the segment."""
    exponent = s.a + s.top
    largest = exponent.amax(-1, keepdim=True)
    a = s.a - largest
    weights = _within_blocks(a, s.b).sum(-1).tril_()
    sums = (weights @ s.v.unflatten(2, (-1, BLOCK))).flatten(2, 3)
    for size, phi_q, phi_k in _halved_blocks(a, s):
        right = _halves(sums, size)[1]
        right += (phi_q @ phi_k.mT) @ _halves(s.v, size)[0]
    phi_q, phi_k, decay = _chunks(a, s)
    products = phi_k.mT @ s.v.unflatten(2, (-1, s.chunk))
    running = _running(decay, total.unsqueeze(2), products)
    before, total = running[:, :, :-1], running[:, :, -1].clone()
    sums += (phi_q @ before).flatten(2, 3)
    denominator = sums[..., -1:]
    log = torch.where(denominator > 0, largest + denominator.log(), NOTHING)
    return _quotient(sums), log, total


def _backward(s: _Segment, log: Tensor, cotangent: Tensor, total: Tensor, grad_total: Tensor):
    """Gradients of a, b, v and of the sums before the segment, given the gradient of the sums after it.

    `cotangent: (B, H, N, M + 1)` is the gradient of each row's numerators and denominator, each row
    being taken with denominator 1: exp(-log) is in the weights.
    """
    fill = (0, 0, 0, s.a.shape[2] - log.shape[2])
    a, u = s.a - F.pad(log, fill, value=NOTHING), F.pad(cotangent, fill)
    blocks_u, blocks_v = u.unflatten(2, (-1, BLOCK)), s.v.unflatten(2, (-1, BLOCK))
    terms = _within_blocks(a, s.b)
    dv = (terms.sum(-1).tril_().mT @ blocks_u).flatten(2, 3)
    terms *= (blocks_u @ blocks_v.mT).tril_().unsqueeze(-1)
    da, db = terms.sum(-2).flatten(2, 3), terms.sum(-3).flatten(2, 3)
    del terms
    for size, phi_q, phi_k in _halved_blocks(a, s):
        right_u, left_v = _halves(u, size)[1], _halves(s.v, size)[0]
        products = right_u @ left_v.mT
        right_a, left_b, left_v = _halves(da, size)[1], _halves(db, size)[0], _halves(dv, size)[0]
        right_a += (products @ phi_k).mul_(phi_q)
        left_b += (products.mT @ phi_q).mul_(phi_k)
        left_v += (phi_q @ phi_k.mT).mT @ right_u
    phi_q, phi_k, decay = _chunks(a, s)
    chunks_u, chunks_v = u.unflatten(2, (-1, s.chunk)), s.v.unflatten(2, (-1, s.chunk))
    before = _running(decay, total.unsqueeze(2), phi_k.mT @ chunks_v)[:, :, :-1]
    running = _running(decay.mT, phi_q.mT @ chunks_u, grad_total.unsqueeze(2))
    grad_total, after = running[:, :, 0], running[:, :, 1:]
    da += (chunks_u @ before.mT).mul_(phi_q).flatten(2, 3)
    db += (chunks_v @ after.mT).mul_(phi_k).flatten(2, 3)
    dv += (phi_k @ after).flatten(2, 3)
    return da, db, dv[..., :-1], grad_total


def _halves(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Left and right halves of the blocks of 2 size positions, `(B, H, L / (2 size), size, ·)`, as views."""
    x = x.unflatten(2, (-1, 2, size))
    return x[:, :, :, 0], x[:, :, :, 1]


def _within_blocks(a: Tensor, b: Tensor) -> Tensor:
    """`exp(a[i, d] + b[j, d])`, `(B, H, L / BLOCK, BLOCK, BLOCK, D)`, for j <= i; elsewhere at most 1."""
    return (a.unflatten(2, (-1, BLOCK, 1)) + b.unflatten(2, (-1, 1, BLOCK))).clamp_(max=0).exp_()


def _halved_blocks(a: Tensor, s: _Segment) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each size of halves, the features of the right halves' queries and the left halves' keys."""
    size = BLOCK
    while size < s.chunk:
        reference = _halves(s.top, size)[0][:, :, :, -1:]
        yield size, (_halves(a, size)[1] + reference).exp_(), (_halves(s.b, size)[0] - reference).exp_()
        size *= 2


def _chunks(a: Tensor, s: _Segment) -> tuple[Tensor, Tensor, Tensor]:
    """Queries' features for the sums before their chunk, keys' for those after it, and what sums decay by.

    The decay from chunk end i to j, `(B, H, D, C + 1, C + 1)`, zero for i > j; 0 is the segment's beginning.
    """
    a, b = a.unflatten(2, (-1, s.chunk)), s.b.unflatten(2, (-1, s.chunk))
    ends = torch.cat([s.before.unsqueeze(2), s.top.unflatten(2, (-1, s.chunk))[:, :, :, -1:]], 2)
    marks = ends.squeeze(3).mT
    decay = (marks.unsqueeze(-2) - marks.unsqueeze(-1)).clamp_(max=0).exp_().tril_()
    return (a + ends[:, :, :-1]).exp_(), (b - ends[:, :, 1:]).exp_(), decay


def _running(decay: Tensor, *sums: Tensor) -> Tensor:
    """At each of C + 1 ends the decayed sum of all before it; `sums` make `(B, H, C + 1, D, M + 1)`."""
    return (decay @ torch.cat(sums, 2).transpose(2, 3)).transpose(2, 3)


def _quotient(sums: Tensor) -> Tensor:
    """The numerators by the denominator, which is the last column; zero where no key is visible."""
    return sums[..., :-1] / (sums[..., -1:] + FLOOR)
