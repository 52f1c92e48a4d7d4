"""Definitions of causal linear attention, as short as possible; every backend is tested against them.

    out[i] = q[i] @ S[i],   S[i] = e^g[i] S[i-1] + k[i]^T v[i],   S[-1] = initial_state

(Katharopoulos et al. 2020, "Transformers are RNNs", equations 16 to 19, without the normaliser; decays g as
of Sun et al. 2023, "Retentive Network", equation 6, 0 unless given.) Where e^g is 0, a sequence begins:
nothing from before is seen, not even a NaN.
Neither function is fast: the first costs O(N^2), the second one Python step per position. `each_sequence`
runs one of them on every sequence of a packed row.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def quadratic(
    q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition as a masked product: `q, k: (B, H, N, D)`, `v: (B, H, N, M)`, `log_decay: (B, H, N)`.

    Returns `out: (B, H, N, M)` and the final state `(B, H, D, M)`, in the inputs' dtype.
    """
    scores = torch.tril(q @ k.transpose(-2, -1))
    if log_decay is None or not q.shape[2]:
        out, state = scores @ v, k.transpose(-2, -1) @ v
        return (out, state) if initial_state is None else (out + q @ initial_state, state + initial_state)
    within, since_start = _decays(log_decay.to(q.dtype))
    to_end = within[..., -1, :].unsqueeze(-1)
    out = scaled(scores, within) @ v.nan_to_num(0.0, 0.0, 0.0) + spread_decayed(v, within)
    state = scaled(k, to_end).transpose(-2, -1) @ v.where(to_end != 0, 0.0)
    if initial_state is not None:
        out = out + scaled_product(q, initial_state, since_start)
        state = state + scaled(initial_state, since_start[..., -1, None, None])
    return out, state


def _decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """From `(..., N)`: the decay from j to i `(..., N, N)`, 0 for j > i, and that from the start to i."""
    row, total, rows, totals = torch.zeros_like(log_decay), 1.0, [], []
    for i, factor in enumerate(log_decay.exp().unbind(-1)):
        row, total = scaled(row, factor.unsqueeze(-1)), total * factor
        row = torch.cat([row[..., :i], torch.ones_like(row[..., :1]), row[..., i + 1 :]], -1)
        rows.append(row)
        totals.append(total)
    return torch.stack(rows, -2), torch.stack(totals, -1)


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """`factor * x`, 0 where the factor is, whatever x is; and so are the derivatives by both."""
    return torch.where(factor == 0, 0.0, factor * torch.where(factor == 0, 0.0, x))


def scaled_product(q: Tensor, state: Tensor, factor: Tensor) -> Tensor:
    """As `scaled(q @ state, factor)`, `factor` by row, also in the derivative by q."""
    factor = factor.unsqueeze(-1)
    return scaled(q.where(factor != 0, 0.0) @ state, factor)


def spread_decayed(v: Tensor, within: Tensor) -> Tensor:
    """NaN from a position on at which v is not finite, as far as the decay `within` is not 0, else 0.

    In a product with v itself a score of 0, of what is not seen, would carry a NaN on (0 * NaN is NaN).
    """
    reached = (within > 0).to(v.dtype) @ (~v.isfinite()).to(v.dtype)
    return torch.where(reached > 0, float("nan"), 0.0).to(v.dtype)


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same function as a recurrent network, one position at a time (same shapes)."""
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    state = state if initial_state is None else initial_state
    outputs = []
    for i in range(q.shape[2]):
        if log_decay is not None:
            state = scaled(state, log_decay[:, :, i, None, None].exp())
        state = state + k[:, :, i, :, None] * v[:, :, i, None, :]
        outputs.append(torch.einsum("bhd,bhdm->bhm", q[:, :, i], state))
    out = torch.stack(outputs, dim=2) if outputs else torch.zeros_like(v)
    return out, state


def each_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    log_decay: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    run: Callable[..., tuple[Tensor, Tensor]] = quadratic,
) -> tuple[Tensor, Tensor]:
    """`run` on each of S sequences packed in `q, k: (1, H, N, D)`, `v: (1, H, N, M)`, `log_decay: (1, H, N)`.

    Sequence s has the positions from `cu_seqlens[s]` up to `cu_seqlens[s + 1]`. Returns `out: (1, H, N, M)`
    and the final states, `(S, H, D, M)` as `initial_state`.
    """
    lengths = cu_seqlens.diff().tolist()
    parts = [x.split(lengths, dim=2) for x in (q, k, v)]
    parts.append([None] * len(lengths) if initial_state is None else initial_state.split(1))
    if log_decay is not None:
        parts.append(log_decay.split(lengths, dim=2))
    results = [run(*sequence) for sequence in zip(*parts, strict=True)]
    outputs, final = zip(*results, strict=True)
    return torch.cat(outputs, dim=2), torch.cat(final)
