"""Linear attention of packed sequences in plain PyTorch: any device, any dtype, differentiable, compilable.

Several sequences lie one after the other in one row, `q, k: (1, H, N, D)`, `v: (1, H, N, M)`; sequence s has
the positions from `cu_seqlens[s]` up to `cu_seqlens[s + 1]`. Each is cut into its own chunks, the last one
filled up with zeros, so that a chunk belongs to one sequence. Inside the chunks attention is `chunked` with
the chunks as heads; the state that enters a chunk is the sum over the earlier chunks of its sequence.

A chunk is about as long as the mean sequence, so the zeros at most triple the rows whatever the lengths are;
padding all sequences to the longest has no such bound. With S sequences and chunks of C rows, time is
O(N D M) and there are at most N / C + S states of D M numbers. Where sequences are so long that a CPU does
not notice a Python step for each, they are computed one by one instead, without zeros.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .chunked import CHUNK, accumulation_dtype, chunked, decays, grouped, values_are_known
from .recomputing import recomputed
from .reference import each_sequence, scaled
from .transforms import in_transform, transformed

_LONGEST_SUM = 512  # rows of a chunk without causal mask, where the work per row does not grow with them
# From so many multiplications k^T v per sequence on, one by one is up to 1.5 times as fast on a CPU. With few
# it is up to 15 times slower (two threads, D from 16 to 64).
_WORTH_A_STEP = 2_000_000


@dataclass(frozen=True)
class _Chunks:
    """How N positions of S sequences lie in T chunks of C rows.

    Attributes:
        size: C.
        positions: `(T C,)`, the position of each row; any one where the row is filled up.
        filled: `(T C, 1)`, whether it is.
        rows: `(N,)`, the row of each position.
        sequences: `(T,)`, the sequence of each chunk.
        first: `(T,)`, whether a chunk is the first of its sequence.
        last: `(S,)`, the last chunk of each sequence, any one for an empty sequence.
        empty: `(S,)`, whether it is.
        continuing: the numbers of the chunks that are not first; None where the values are not known.
    """

    size: int
    positions: Tensor
    filled: Tensor
    rows: Tensor
    sequences: Tensor
    first: Tensor
    last: Tensor
    empty: Tensor
    continuing: list[int] | None

    def of(self, x: Tensor) -> Tensor:
        """`(1, H, N, ·)` to `(H, T, C, ·)`."""
        rows = _Rows.apply(x.squeeze(0), self.positions, self.filled, self.rows, None)
        return rows.unflatten(1, (-1, self.size))

    def in_a_row(self, x: Tensor) -> Tensor:
        """`(H, T, C, ·)` to `(1, H, N, ·)`."""
        return _Rows.apply(x.flatten(1, 2), self.rows, None, self.positions, self.filled).unsqueeze(0)


def _cut(cu_seqlens: Tensor, length: int, longest: int) -> _Chunks:
    """The chunks: of as many rows as the mean sequence, rounded up to a power of 2, but at most `longest`."""
    device, count, size = cu_seqlens.device, len(cu_seqlens) - 1, 1
    while size < longest and size * count < length:
        size *= 2
    bounds = cu_seqlens.long()
    starts, ends = bounds[:-1], bounds[1:]
    numbers = (ends - starts + size - 1) // size
    after = numbers.cumsum(0)  # the last chunk of each sequence
    before = after - numbers
    known = values_are_known(cu_seqlens)
    chunks = torch.arange(int(after[-1]) if known else (length + count * (size - 1)) // size, device=device)
    sequences = torch.searchsorted(after, chunks, right=True).clamp_(max=count - 1)
    ranks = chunks - before[sequences]
    positions = (starts[sequences] + ranks * size).unsqueeze(1) + torch.arange(size, device=device)
    places = torch.arange(length, device=device)
    of_place = torch.searchsorted(ends, places, right=True)
    return _Chunks(
        size=size,
        positions=positions.clamp(max=length - 1).flatten(),
        filled=(positions >= ends[sequences].unsqueeze(1)).view(-1, 1),
        rows=places + (before * size - starts)[of_place],
        sequences=sequences,
        first=ranks == 0,
        last=(after - 1).clamp_(min=0),
        empty=numbers == 0,
        continuing=ranks.nonzero().flatten().tolist() if known else None,
    )


class _Rows(torch.autograd.Function):
    """Rows `there` of `x: (H, L, ·)`, zero where `filled`; the last arguments are for the backward pass."""

    @staticmethod
    def forward(ctx, x, there, filled, back, filled_back):
        ctx.save_for_backward(there, filled, back, filled_back)
        return _rows(x, there, filled)

    @staticmethod
    def backward(ctx, grad):
        there, filled, back, filled_back = ctx.saved_tensors
        if transformed(grad):
            return _rows(grad, back, filled_back), None, None, None, None
        return _Rows.apply(grad, back, filled_back, there, filled), None, None, None, None


def _rows(x: Tensor, there: Tensor, filled: Tensor | None) -> Tensor:
    rows = x.index_select(1, there)
    return rows if filled is None else rows.masked_fill(filled, 0.0)


class _Entering(torch.autograd.Function):
    """The state before each chunk: `(products, initial, first, continuing, reverse)`, both `(H, T, D, M)`.

    It is `initial` at the first chunk of a sequence, and elsewhere the sum with the products of earlier
    chunks; with `reverse`, of later ones.
    """

    @staticmethod
    def forward(ctx, products, initial, first, continuing, reverse):
        ctx.save_for_backward(first)
        ctx.continuing, ctx.reverse, ctx.initial = continuing, reverse, initial is not None
        if continuing is None:
            return _entering(products, initial, first, continuing, reverse)
        states = torch.zeros_like(products) if initial is None else initial.clone()
        for chunk in reversed(continuing) if reverse else continuing:
            source, target = (chunk, chunk - 1) if reverse else (chunk - 1, chunk)
            torch.add(states[:, source], products[:, source], out=states[:, target])
        return states

    @staticmethod
    def backward(ctx, grad):
        (first,) = ctx.saved_tensors
        run = _entering if transformed(grad) else _Entering.apply
        grad_products = run(grad, None, first, ctx.continuing, not ctx.reverse)
        grad_initial = None
        if ctx.initial:
            grad_initial = torch.where(first[:, None, None], grad + grad_products, 0.0)
        return grad_products, grad_initial, None, None, None


def _entering(
    products: Tensor,
    initial: Tensor | None,
    first: Tensor,
    continuing: list[int] | None,
    reverse: bool,
    totals: Tensor | None = None,
) -> Tensor:
    """As `_Entering`, whatever the chunks, of operators that change nothing in place.

    totals: `(H, T)`, the decay of a state over each chunk.
    """
    initial = torch.zeros_like(products) if initial is None else initial
    chunks = range(len(first))
    states = [initial[:, chunks[-1 if reverse else 0]]]
    for chunk in reversed(chunks[1:]) if reverse else chunks[1:]:
        source, target = (chunk, chunk - 1) if reverse else (chunk - 1, chunk)
        state = states[-1] if totals is None else scaled(states[-1], totals[:, source, None, None])
        state = state + products[:, source]
        states.append(torch.where(first[chunk], initial[:, target], state))
    return torch.stack(states[::-1] if reverse else states, 1)


def _one_by_one(k: Tensor, v: Tensor, cu_seqlens: Tensor) -> bool:
    if in_transform():  # without derivatives of the functions above
        return True
    work = k.numel() * v.shape[-1]
    return k.is_cpu and values_are_known(cu_seqlens) and work >= _WORTH_A_STEP * (len(cu_seqlens) - 1)


def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    log_decay: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    return_state: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Causal linear attention of each of S sequences packed in `q, k: (1, H, N, D)`, `v: (1, H, N, M)`.

    q may have a multiple of the heads of k and v.

    Args:
        initial_state: `(S, H, D, M)` in the accumulation dtype, H as of k; None is zero.
        log_decay: `(1, H, N)` in that dtype.
        cu_seqlens: `(S + 1,)`, integers from 0 to N that do not decrease.

    Returns `out: (1, H, N, M)` in v's dtype and the final states `(S, H, D, M)`, which may be None unless
    `return_state`.
    """
    if _one_by_one(k, v, cu_seqlens):
        run = grouped(chunked)
        return each_sequence(q, k, v, initial_state, log_decay, cu_seqlens=cu_seqlens, run=run)
    return recomputed(_causal, q, k, v, initial_state, log_decay, cu_seqlens, return_state)


def _causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None,
    log_decay: Tensor | None,
    cu_seqlens: Tensor,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """`causal` in chunks. Keys and values come into two products, whose gradients add up in float32."""
    dtype, wide = v.dtype, accumulation_dtype(q.dtype)
    heads, group = k.shape[1], q.shape[1] // max(k.shape[1], 1)
    q, k, v = (x.to(wide) for x in (q, k, v))
    if initial_state is None and return_state:
        shape = (len(cu_seqlens) - 1, heads, q.shape[-1], v.shape[-1])
        initial_state = q.new_zeros(shape, dtype=wide)
    if not q.shape[2]:
        state = (k.mT @ v).repeat_interleave(group, 1)
        return (q @ state).to(dtype), None if initial_state is None else initial_state.clone()
    chunks = _cut(cu_seqlens, q.shape[2], CHUNK)
    # The first head of q for each of k, the second ones and so on.
    q = q.unflatten(1, (heads, group)).transpose(1, 2).flatten(1, 2)
    queries, keys, values = (chunks.of(x) for x in (q, k, v))
    initial = None
    if initial_state is not None:
        initial = initial_state.transpose(0, 1).index_select(1, chunks.sequences)
    places = chunks.first, chunks.continuing, False
    if log_decay is None:
        entering = _Entering.apply(keys.mT @ values, initial, *places)
    else:
        log_decay = chunks.of(log_decay.unsqueeze(-1)).squeeze(-1)
        within, since_start = decays(log_decay)
        to_end = within[..., -1, :, None]
        products = scaled(keys, to_end).mT @ values.where(to_end != 0, 0.0)
        entering = _entering(products, initial, *places, since_start[..., -1])

    def shared(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.flatten(0, 1).expand(group, -1, *x.shape[2:])

    queries = queries.unflatten(0, (group, heads)).flatten(1, 2)
    out, leaving = chunked(queries, *map(shared, (keys, values, entering, log_decay)))
    of_heads = heads, len(chunks.sequences)
    out = out.unflatten(1, of_heads).transpose(0, 1).flatten(0, 1)
    final = None
    if return_state:
        final = leaving[0].unflatten(0, of_heads).index_select(1, chunks.last).transpose(0, 1)
        final = torch.where(chunks.empty[:, None, None, None], initial_state, final)
    return chunks.in_a_row(out).to(dtype), final


def _whole(q: Tensor, k: Tensor, v: Tensor, _: None) -> tuple[Tensor, Tensor]:
    state = k.mT @ v
    return q @ state, state


def bidirectional(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """`q @ (k^T v)` of each sequence, of tensors and sequences as in `causal`, in the inputs' dtype."""
    if not q.shape[2]:
        return q @ (k.mT @ v)
    if _one_by_one(k, v, cu_seqlens):
        return each_sequence(q, k, v, cu_seqlens=cu_seqlens, run=_whole)[0]
    chunks = _cut(cu_seqlens, q.shape[2], _LONGEST_SUM)
    queries, keys, values = (chunks.of(x) for x in (q, k, v))
    shape = (q.shape[1], len(cu_seqlens) - 1, q.shape[-1], v.shape[-1])
    sums = q.new_zeros(shape).index_add(1, chunks.sequences, keys.mT @ values)
    return chunks.in_a_row(queries @ sums.index_select(1, chunks.sequences))
