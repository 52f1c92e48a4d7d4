"""Definitions of causal linear attention, as short as possible; every backend is tested against them.

    out[i] = q[i] @ S[i],   S[i] = S[i-1] + k[i]^T v[i],   S[-1] = initial_state

(Katharopoulos et al. 2020, "Transformers are RNNs", equations 16 to 19, without the normaliser.)
Neither function is fast: the first costs O(N^2), the second one Python step per position. `each_sequence`
runs one of them on every sequence of a packed row.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def quadratic(q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The definition as a masked product: `q, k: (B, H, N, D)`, `v: (B, H, N, M)`.

    Returns `out: (B, H, N, M)` and the final state `(B, H, D, M)`, in the inputs' dtype.
    """
    scores = torch.tril(q @ k.transpose(-2, -1))
    out, state = scores @ v, k.transpose(-2, -1) @ v
    if initial_state is not None:
        out, state = out + q @ initial_state, state + initial_state
    return out, state


def recurrent(q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same function as a recurrent network, one position at a time (same shapes)."""
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    state = state if initial_state is None else initial_state
    outputs = []
    for i in range(q.shape[2]):
        state = state + k[:, :, i, :, None] * v[:, :, i, None, :]
        outputs.append(torch.einsum("bhd,bhdm->bhm", q[:, :, i], state))
    out = torch.stack(outputs, dim=2) if outputs else torch.zeros_like(v)
    return out, state


def each_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    run: Callable[..., tuple[Tensor, Tensor]] = quadratic,
) -> tuple[Tensor, Tensor]:
    """`run` on each of S sequences packed in `q, k: (1, H, N, D)`, `v: (1, H, N, M)`.

    Sequence s has the positions from `cu_seqlens[s]` up to `cu_seqlens[s + 1]`. Returns `out: (1, H, N, M)`
    and the final states, `(S, H, D, M)` as `initial_state`.
    """
    lengths = cu_seqlens.diff().tolist()
    rows = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
    states = [None] * len(lengths) if initial_state is None else initial_state.split(1)
    results = [run(*row, state) for row, state in zip(rows, states, strict=True)]
    outputs, final = zip(*results, strict=True)
    return torch.cat(outputs, dim=2), torch.cat(final)
