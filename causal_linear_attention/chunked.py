"""Causal linear attention in plain PyTorch: O(N (D M + C (D + M))) time, any device, any dtype.

The sequence is cut into chunks of C positions. Inside a chunk the product is quadratic (C is small),
across chunks it goes through the running (D, M) state:

    out_chunk = tril(q k^T) v + q S,   S <- S + k^T v

and with decays e^g, of which L[i, j] is the product over j < t <= i and "since start" that over t <= i:

    out_chunk = (tril(q k^T) * L) v + since_start * (q S),   S <- since_start[-1] S + (L[-1] * k)^T v

Several chunks form a segment that is computed with batched products; only segments are looped over,
so that temporary memory is one segment's, whatever N is. On a CPU a segment is of few sequences and heads,
so that it stays in the caches and neither inputs nor outputs are copied. Products accumulate in float32
(float64 for float64 inputs); those of bfloat16 inputs are left to a processor that has instructions for
them, which rounds each to bfloat16, while their sums over chunks stay float32. The gradients are causal
linear attentions themselves, forwards for q and backwards in time for k and v, so nothing but the inputs
is kept for the backward pass and derivatives of every order exist; of the first order, on a CPU, all are
computed together.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .reference import scaled, scaled_product, spread_decayed
from .transforms import composes, gradients, in_onnx_export, transformed

CHUNK = 64
SEGMENT = 16 * CHUNK
"""Positions of each head in a segment, on a GPU or where a graph is traced."""
SPAN = 128 * CHUNK
"""Positions of all heads in a segment on a CPU."""
Part = tuple[slice, slice]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 accumulates in float64, every other floating type in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


# Whether oneDNN multiplies bfloat16 in hardware here.
_NATIVE_BFLOAT16 = torch.backends.mkldnn.is_available() and any(
    torch.cpu.get_capabilities().get(name, False) for name in ("amx_bf16", "avx512_bf16")
)


def _product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of products of inputs like x."""
    if _NATIVE_BFLOAT16 and x.dtype == torch.bfloat16 and x.device.type == "cpu":
        return torch.bfloat16
    return accumulation_dtype(x.dtype)


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Products keep the types they are given: autocast would cast them down and sum in 16 bits."""
    return torch.autocast(device.type, enabled=False) if under_autocast(device) else nullcontext()


def under_autocast(device: torch.device) -> bool:
    """Whether autocast is on for the device."""
    # torch 2.11 cannot compile the first question, whose answer is yes for every device it compiles for.
    available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device.type)
    return available and torch.is_autocast_enabled(device.type)


def _in_chunks(*tensors: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """`(B, H, L, ·)` each to `(B H chunks, size, ·)`, filled up with zeros; and the number of chunks."""
    batch, heads, length = tensors[0].shape[:3]
    chunks = -(-length // CHUNK)
    size = min(length, CHUNK)
    if fill := chunks * size - length:
        tensors = tuple(F.pad(x, (0, 0, 0, fill)) for x in tensors)
    return tuple(x.reshape(batch * heads * chunks, size, x.shape[3]) for x in tensors), chunks


def _parts(x: Tensor) -> tuple[list[Part], list[slice]]:
    """Sequences and heads of x that are computed together, and the segments of each.

    On a CPU they are whole sequences, or segments of one head: chunks of either lie in a row.
    """
    batch, heads, length = x.shape[:3]
    if not _in_sight(x):
        return [(slice(None), slice(None))], _slices(length, SEGMENT)
    together = max(SPAN // max(length, 1), 1)
    sequences, heads_of_part = max(together // max(heads, 1), 1), max(min(together, heads), 1)
    parts = [(b, h) for b in _slices(batch, sequences) for h in _slices(heads, heads_of_part)]
    return parts, _slices(length, SPAN)


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _segment(q: Tensor, k: Tensor, v: Tensor, state: Tensor, reverse: bool, out: Tensor) -> Tensor:
    """Computes `out` of one segment `(B, H, L, ·)`; returns the state that leaves it.

    The others have the dtype of products.
    """
    (q, k, v), chunks = _in_chunks(q, k, v)
    before, state = _states(k.mT @ v, chunks, state, reverse)
    scores = q @ k.mT
    scores = scores.triu_() if reverse else scores.tril_()
    if _surely_finite(state):
        _put_products(out, chunks, (scores, v), (q, before))
    else:
        _put_products(out, chunks, (scores, v.nan_to_num(0.0, 0.0, 0.0)), (q, before), _spread(v, reverse))
    return state


def _put_products(
    out: Tensor,
    chunks: int,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    more: Tensor | None = None,
) -> None:
    """out `(B, H, L, ·)` = the sum of two products and `more`, all of them `(B H chunks, size, ·)`."""
    batch, heads, length, width = out.shape
    shape, dtype = (*first[0].shape[:2], width), first[0].dtype
    direct = out.dtype == dtype and out.is_contiguous() and chunks * shape[1] == length
    total = out.view(shape) if direct else out.new_empty(shape, dtype=dtype)
    total.baddbmm_(*first, beta=0)
    total.baddbmm_(second[0], second[1].to(dtype))
    if more is not None:
        total += more
    if not direct:
        out.copy_(total.view(batch, heads, chunks * shape[1], width)[:, :, :length])


def _states(products: Tensor, chunks: int, state: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """The state before each chunk, from the chunks' `products: (B H chunks, D, M)`, and the last state.

    Both have the state's dtype, which may be wider than the products' dtype.
    """
    shape = *state.shape[:2], chunks, *state.shape[2:]
    together = math.gcd(chunks, 16) if chunks > SPAN // CHUNK // 2 and _in_sight(products) else 1
    products = products.view(*state.shape[:2], together, chunks // together, *state.shape[2:])
    before = torch.empty_like(products, dtype=state.dtype)
    if together == 1:
        end = _add_up(before, products, state.unsqueeze(2), 3, reverse)
        return before.view(shape).flatten(0, 2), end.squeeze(2)
    # A single head: first within runs of chunks, all runs at once, which threads share; then from run to run.
    ends = _add_up(before, products, state.new_zeros(()), 3, reverse)
    entering = torch.empty_like(ends)
    state = _add_up(entering, ends, state, 2, reverse)
    before += entering.unsqueeze(3)
    return before.view(shape).flatten(0, 2), state


def _add_up(before: Tensor, products: Tensor, state: Tensor, dim: int, reverse: bool) -> Tensor:
    """Writes the sums of state and the products before each along `dim`; returns the sum of all."""
    pairs = list(zip(before.unbind(dim), products.unbind(dim), strict=True))
    pairs = pairs[::-1] if reverse else pairs
    pairs[0][0].copy_(state)
    for (entered, product), (place, _) in pairwise(pairs):
        _put_sum(place, entered, product)
    entered, product = pairs[-1]
    return entered + product


def _put_sum(out: Tensor, x: Tensor, y: Tensor) -> None:
    """out = x + y; a traced graph takes no `out=` that is not contiguous."""
    if torch.compiler.is_compiling():
        out.copy_(x + y)
    else:
        torch.add(x, y, out=out)


def values_are_known(x: Tensor) -> bool:
    """Whether Python may look at x's numbers: not while compiling, and not if it has none."""
    return not (torch.compiler.is_compiling() or x.is_meta or isinstance(x, FakeTensor))


def _in_sight(x: Tensor) -> bool:
    """Whether a look at x's numbers costs no more than reading them."""
    return x.is_cpu and values_are_known(x)


def _surely_finite(*sums: Tensor) -> bool:
    """Whether a look at states, to which every position adds, finds only numbers."""
    return all(_in_sight(x) and math.isfinite(x.sum()) for x in sums)


def _spread(v: Tensor, reverse: bool) -> Tensor:
    """NaN from the first position of a chunk on at which v is not finite, else zero.

    The zeros above the diagonal of the scores would carry a NaN to earlier positions too (0 * NaN is NaN),
    so the product is taken without such values and they are put back where they belong.
    """
    bad = ~v.isfinite()
    # Counted in integers: torch's deterministic mode refuses a cumsum of floats on a GPU.
    bad = bad.flip(-2) if reverse else bad
    count = bad.cumsum(-2, dtype=torch.int32)
    count = count.flip(-2) if reverse else count
    return torch.zeros_like(v).masked_fill_(count > 0, float("nan"))


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _forward(q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """`out` in the inputs' dtype and the final state; `reverse` sums over later positions instead."""
    out, final, dtype = _empty_like(v), _empty_like(initial_state), _product_dtype(q)
    parts, segments = _parts(q)
    for part in parts:
        state = initial_state[part]
        for places in reversed(segments) if reverse else segments:
            # Converted here, so that any float32 copies are as short as a segment.
            inputs = (x[*part, places].to(dtype) for x in (q, k, v))
            with without_autocast(q.device):
                state = _segment(*inputs, state, reverse, out[*part, places])
        final[part] = state
    return out, final


def _backward(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, grad_out: Tensor, grad_state: Tensor
) -> list[Tensor] | None:
    """The gradients of q, k, v and the initial state in one pass backwards; None if not all are finite."""
    grads = [_empty_like(x) for x in (q, k, v, state)]
    dtype, (parts, segments) = _product_dtype(q), _parts(q)
    for part in parts:

        def of(places: slice, *tensors: Tensor, part: Part = part) -> list[Tensor]:
            return [x[*part, places] for x in tensors]

        entering, grad_after = [state[part]], grad_state[part]
        for places in segments[:-1]:
            keys, values = (x.to(dtype) for x in of(places, k, v))
            entering.append(entering[-1] + keys.mT @ values)
        for places in reversed(segments):
            inputs = (x.to(dtype) for x in of(places, q, k, v, grad_out))
            states = entering.pop(), grad_after
            after, grad_after = _segment_backward(*inputs, *states, of(places, *grads[:3]))
            if not _surely_finite(after, grad_after):
                return None
        grads[3][part] = grad_after
    return grads


def _segment_backward(q, k, v, grad, state, grad_state, grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Computes the `grads` of one segment's q, k and v.

    Returns the state that leaves it, and the gradient of the state that enters it.
    """
    (q, k, v, grad), chunks = _in_chunks(q, k, v, grad)
    before, state = _states(k.mT @ v, chunks, state, reverse=False)
    after, grad_state = _states(q.mT @ grad, chunks, grad_state, reverse=True)
    scores, grad_scores = (q @ k.mT).tril_(), (grad @ v.mT).tril_()
    _put_products(grads[0], chunks, (grad_scores, k), (grad, before.mT))
    _put_products(grads[1], chunks, (grad_scores.mT, q), (v, after.mT))
    _put_products(grads[2], chunks, (scores.mT, grad), (k, after))
    return state, grad_state


class ChunkedCausalLinearAttention(torch.autograd.Function):
    """`(q, k, v, initial_state, reverse) -> (out, final_state)`, differentiable in the four tensors."""

    @staticmethod
    def forward(ctx, q, k, v, initial_state, reverse):
        ctx.save_for_backward(q, k, v, initial_state)
        ctx.reverse = reverse
        return _forward(q, k, v, initial_state, reverse)

    @staticmethod
    def backward(ctx, grad_out, grad_state):
        q, k, v, state = ctx.saved_tensors
        if transformed(grad_out, grad_state):
            run = partial(_composed, reverse=ctx.reverse)
            return *gradients(run, (q, k, v, state), (grad_out, grad_state)), None
        apply, reverse = ChunkedCausalLinearAttention.apply, ctx.reverse
        together = all(ctx.needs_input_grad[:3]) and not (reverse or torch.is_grad_enabled()) and q.shape[2]
        if together and _in_sight(q):
            with without_autocast(q.device):
                grads = _backward(q, k, v, state, grad_out, grad_state)
            if grads is not None:
                return *grads, None
        grad_q = grad_k = grad_v = grad_initial = None
        if ctx.needs_input_grad[0]:
            grad_q = apply(grad_out, v, k, state.transpose(-2, -1), reverse)[0]
        if ctx.needs_input_grad[1]:
            grad_k = apply(v, grad_out, q, grad_state.transpose(-2, -1), not reverse)[0]
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            grad_v, grad_initial = apply(k, q, grad_out, grad_state, not reverse)
        return grad_q, grad_k, grad_v, grad_initial, None


def decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """From `(..., C)`: the decay from j to i `(..., C, C)`, 0 for j > i, and that from the start to i.

    Each is the exponential of a separate sum: nothing cancels, and -inf stays within its sums.
    """
    size = log_decay.shape[-1]
    places = torch.arange(size, device=log_decay.device)
    sums = torch.where(places[:, None] > places, log_decay.unsqueeze(-1), 0.0)
    if in_onnx_export():
        sums = sums.cumsum(-2)
    else:  # torch's deterministic mode refuses a cumsum of floats on a GPU
        step = 1
        while step < size:
            sums = sums + F.pad(sums[..., :-step, :], (0, 0, step, 0))
            step *= 2
    within = torch.where(places[:, None] >= places, sums.exp(), 0.0)
    return within, scaled(within[..., 0], log_decay[..., :1].exp())


def _composed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    log_decay: Tensor | None = None,
    *,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `_forward`, of operators that change nothing in place and whose derivatives autograd keeps."""
    if reverse:
        out, state = _composed(*(x.flip(2) for x in (q, k, v)), state)
        return out.flip(2), state
    dtype, length = v.dtype, q.shape[2]
    q, k, v = (x.to(state.dtype) for x in (q, k, v))
    with without_autocast(q.device):
        if not length:
            product = k.mT @ v
            return (q @ product).to(dtype), state + product
        size = CHUNK if in_onnx_export() else min(length, CHUNK)  # there N may be any number
        chunks = (length + size - 1) // size
        fill = chunks * size - length
        q, k, v = (F.pad(x, (0, 0, 0, fill)).unflatten(2, (chunks, size)) for x in (q, k, v))
        scores, since_start, values = (q @ k.mT).tril(), None, v
        if log_decay is not None:
            within, since_start = decays(F.pad(log_decay, (0, fill)).unflatten(2, (chunks, size)))
            to_end = within[..., -1, :, None]
            scores, k, values = scaled(scores, within), scaled(k, to_end), v.where(to_end != 0, 0.0)
        before, state = _sums(k.mT @ values, state, None if since_start is None else since_start[..., -1])
        if since_start is None:
            of_state, spread = q @ before, _spread(v, False)
        else:
            of_state, spread = scaled_product(q, before, since_start), spread_decayed(v, within)
        out = scores @ v.nan_to_num(0.0, 0.0, 0.0) + of_state + spread
    return out.flatten(2, 3)[:, :, :length].to(dtype), state


def _sums(products: Tensor, state: Tensor, totals: Tensor | None) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and the last state.

    Args:
        products: `(B, H, chunks, D, M)`.
        state: the state before the first chunk.
        totals: `(B, H, chunks)`, the decay of a state over each chunk.
    """
    if in_onnx_export():  # a graph without a loop
        if totals is None:
            after = state.unsqueeze(2) + products.cumsum(2)
        else:
            within, since_start = decays(totals.log())
            after = (within @ products.flatten(3)).view_as(products)
            after = after + scaled(state.unsqueeze(2), since_start[..., None, None])
        return torch.cat([state.unsqueeze(2), after[:, :, :-1]], 2), after[:, :, -1]
    before = []
    for place, product in enumerate(products.unbind(2)):
        before.append(state)
        if totals is not None:
            state = scaled(state, totals[:, :, place, None, None])
        state = state + product
    return torch.stack(before, 2), state


class _Decayed(torch.autograd.Function):
    """`(q, k, v, initial_state, log_decay) -> (out, final_state)`, `_composed` by segments.

    The backward pass computes each segment again, from the state before it, which forward keeps.
    """

    @staticmethod
    def forward(ctx, q, k, v, initial_state, log_decay):
        state, entering, pieces = initial_state, [], []
        for segment in _segments(q, k, v, log_decay):
            entering.append(state)
            *rows, decay = segment
            piece, state = _composed(*rows, state, decay)
            pieces.append(piece)
        kept = torch.stack(entering[1:]) if len(entering) > 1 else None
        ctx.save_for_backward(q, k, v, initial_state, log_decay, kept)
        return torch.cat(pieces, 2), state.clone() if state is initial_state else state

    @staticmethod
    def backward(ctx, grad_out, grad_state):
        *inputs, kept = ctx.saved_tensors
        if transformed(grad_out, grad_state):
            return tuple(gradients(_composed, inputs, (grad_out, grad_state)))
        if torch.is_grad_enabled():
            # Views: a gradient ends at its own argument, also where one argument is computed from another.
            given = [x.view_as(x) for x in inputs]
            return _pulled_back(given, grad_out, grad_state, ctx.needs_input_grad, create_graph=True)
        q, k, v, initial_state, log_decay = inputs
        entering = [initial_state] if kept is None else [initial_state, *kept]
        pieces = []
        for segment, grad in reversed(
            list(zip(_segments(q, k, v, log_decay), _segments(grad_out), strict=True))
        ):
            given = (*segment[:3], entering.pop(), segment[3])
            given = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
            *found, grad_state, grad_decay = _pulled_back(given, *grad, grad_state, (True,) * 5)
            pieces.append([*found, grad_decay])
        *found, grad_decay = (torch.cat(grads[::-1], 2) for grads in zip(*pieces, strict=True))
        return *found, grad_state, grad_decay


def _segments(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Segments of tensors with positions in their third dimension, one that may be empty at least."""
    return list(zip(*(x.split(SEGMENT, 2) for x in tensors), strict=True))


def _pulled_back(given, grad_out, grad_state, wanted, create_graph=False) -> tuple[Tensor | None, ...]:
    """The wanted gradients of `_composed`'s inputs."""
    with torch.enable_grad():
        outputs = _composed(*given)
        leaves = [x for x, w in zip(given, wanted, strict=True) if w]
        found = iter(derivatives(outputs, leaves, (grad_out, grad_state), create_graph))
    return tuple(next(found) if w else None for w in wanted)


def derivatives(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], grads: Sequence[Tensor | None], create_graph: bool
) -> Sequence[Tensor | None]:
    """The leaves' gradients from those of the outputs; None for all if no output depends on one."""
    pairs = zip(outputs, grads, strict=True)
    pairs = [(x, grad) for x, grad in pairs if grad is not None and x.requires_grad]
    if not pairs:
        return [None] * len(leaves)
    outputs, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, leaves, grads, create_graph=create_graph, materialize_grads=True)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    log_decay: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal linear attention of `q, k: (B, H, N, D)`, `v: (B, H, N, M)` in linear time and memory.

    `log_decay` is `(B, H, N)` in the accumulation dtype. Returns `out: (B, H, N, M)` in v's dtype and the
    final state `(B, H, D, M)` in the accumulation dtype.
    """
    if initial_state is None:
        shape = (*q.shape[:2], q.shape[-1], v.shape[-1])
        initial_state = q.new_zeros(shape, dtype=accumulation_dtype(q.dtype))
    if composes():
        return _composed(q, k, v, initial_state, log_decay)
    if log_decay is not None:
        return _Decayed.apply(q, k, v, initial_state, log_decay)
    return ChunkedCausalLinearAttention.apply(q, k, v, initial_state, False)


def grouped(run: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """`run` for more heads of q than of k: those that share one are heads of a row, with strides of 0 in k.

    `run` takes and returns what `chunked` does; the state has the heads of k.
    """

    def run_grouped(q, k, v, state=None, log_decay=None):
        (batch, heads), count = k.shape[:2], q.shape[1] // max(k.shape[1], 1)
        if count == 1 or not heads:
            return run(q, k, v, state, log_decay)

        def shared(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.flatten(0, 1).unsqueeze(1).expand(-1, count, *x.shape[2:])

        q = q.unflatten(1, (heads, count)).flatten(0, 1)
        out, state = run(q, *map(shared, (k, v, state, log_decay)))
        return out.unflatten(0, (batch, heads)).flatten(1, 2), state[:, 0].unflatten(0, (batch, heads))

    return run_grouped


def multiplied(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """q times `scale`, k and v; of float16, whose range the factor may leave, in float32."""
    if scale == 1:
        return q, k, v
    dtype = torch.float32 if q.dtype == torch.float16 else q.dtype
    return q.to(dtype) * scale, k.to(dtype), v.to(dtype)


def normalized(
    run,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eps: float,
    initial_state: Tensor | None,
    log_decay: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Numerator and denominator from one pass of `run` over v with a column of ones."""
    wide = accumulation_dtype(q.dtype)
    # float32 out of the pass: a denominator rounded to 8 bits would cost every output its precision.
    ones = F.pad(v.to(wide), (0, 1), value=1.0)
    sums, state = run(q.to(wide), k.to(wide), ones, initial_state, log_decay)
    return (sums[..., :-1] / (sums[..., -1:] + eps)).to(v.dtype), state
