"""The public functions: they check their arguments, pick a backend and, if asked, normalise.

Shapes are (batch, heads, length, dim): `q, k: (B, H, N, D)`, `v: (B, H, N, M)`. Formulas are those of
Katharopoulos et al. 2020, "Transformers are RNNs", section 3. With `normalize=True` a column of ones rides
along with v, so that numerator and denominator come from the same pass and the state is (D, M + 1) wide:

    out[i] = q[i] @ S[i] / (q[i] @ z[i] + eps),   z[i] = sum of k[j] over j <= i
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import reference
from .chunked import accumulation_dtype, chunked

BACKENDS = {"torch": chunked, "reference": reference.quadratic}


def select_backend(backend: str) -> str:
    """The name that runs for `backend`; "auto" is "torch". Raises ValueError for an unknown name."""
    if backend == "auto":
        return "torch"
    if backend not in BACKENDS:
        names = ", ".join(["auto", *BACKENDS])
        raise ValueError(f"backend is {backend!r}; expected one of {names}")
    return backend


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalize: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """`out[i] = q[i] @ (initial_state + sum over j <= i of k[j]^T v[j])`, in O(N D M) time.

    Args:
        q, k: `(B, H, N, D)`, feature maps already applied; any strides, any N, one floating dtype.
        v: `(B, H, N, M)`.
        normalize: divide by `q[i] @ (sum of k[j]) + eps`; the state then has M + 1 columns, the last
            one being the sum of the keys.
        eps: added to the denominator (float32).
        initial_state: `(B, H, D, M)`, or `(B, H, D, M + 1)` with `normalize`; float32 (float64 for float64
            inputs). None starts from zero.
        return_state: also return the state after the last position, in the same dtype.
        backend: "auto", "torch" (linear time) or "reference" (quadratic, for tests).

    Returns:
        `out: (B, H, N, M)` in v's dtype, or `(out, state)`.

    Raises:
        ValueError: naming the argument, its shape or type, and what was expected.
    """
    _check_inputs(q, k, v, "N")
    _check_state(initial_state, q, v.shape[-1] + normalize)
    run = BACKENDS[select_backend(backend)]
    if normalize:
        out, state = _normalized(run, q, k, v, eps, initial_state)
    else:
        out, state = run(q, k, v, _as_state(initial_state, run, q))
    return (out, state.to(accumulation_dtype(q.dtype))) if return_state else out


def causal_linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    *,
    normalize: bool = False,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """One position of `causal_linear_attention`, for decoding: O(D M) whatever the position.

    Args:
        q, k: `(B, H, D)`; v: `(B, H, M)`.
        state: `(B, H, D, M)`, or `(B, H, D, M + 1)` with `normalize`, float32 (float64 for float64 inputs).
            It is not modified.
        normalize, eps: as in `causal_linear_attention`.

    Returns:
        `out: (B, H, M)` in v's dtype and the new state.

    Raises:
        ValueError: naming the argument, its shape or type, and what was expected.
    """
    _check_inputs(q, k, v, None)
    _check_state(state, q, v.shape[-1] + normalize)
    q, k, wide = q.to(state.dtype), k.to(state.dtype), v.to(state.dtype)
    if normalize:
        wide = F.pad(wide, (0, 1), value=1.0)
    state = torch.addcmul(state, k.unsqueeze(-1), wide.unsqueeze(-2))
    out = torch.matmul(q.unsqueeze(-2), state).squeeze(-2)
    if normalize:
        out = out[..., :-1] / (out[..., -1:] + eps)
    return out.to(v.dtype), state


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalize: bool = False,
    eps: float = 1e-6,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """Bidirectional linear attention `q @ (k^T v)`, two products, O(N D M).

    Args:
        q, k: `(B, H, N, D)`, feature maps already applied (k may have another length than q, equal to v's).
        v: `(B, H, N, M)`.
        normalize, eps: as in `causal_linear_attention`, with the sum of all keys.
        key_padding_mask: bool `(B, N)`, True where a key is padding and counts for nothing.

    Returns:
        `out: (B, H, N, M)` in v's dtype; the sums are float32 (float64 for float64 inputs).

    Raises:
        ValueError: naming the argument, its shape or type, and what was expected.
    """
    _check_inputs(q, k, v, None if q.dim() == 4 and q.shape[2:3] != k.shape[2:3] else "N", rank=4)
    if key_padding_mask is not None:
        _check_mask(key_padding_mask, k)
        k = k.masked_fill(key_padding_mask[:, None, :, None], 0.0)
    wide = accumulation_dtype(q.dtype)
    keys = k.to(wide)
    state = keys.transpose(-2, -1) @ v.to(wide)
    out = q.to(wide) @ state
    if normalize:
        out = out / (q.to(wide) @ keys.sum(2).unsqueeze(-1) + eps)
    return out.to(v.dtype)


def _normalized(run, q, k, v, eps, initial_state) -> tuple[Tensor, Tensor]:
    """Numerator and denominator from one pass over v with a column of ones."""
    wide = accumulation_dtype(q.dtype)
    # float32 out of the pass: a denominator rounded to 8 bits would cost every output its precision.
    ones = F.pad(v.to(wide), (0, 1), value=1.0)
    sums, state = run(q.to(wide), k.to(wide), ones, initial_state)
    return (sums[..., :-1] / (sums[..., -1:] + eps)).to(v.dtype), state


def _as_state(state: Tensor | None, run, q: Tensor) -> Tensor | None:
    return state.to(q.dtype) if state is not None and run is reference.quadratic else state


def _shapes(**tensors: Tensor) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, length: str | None, rank: int = 0) -> None:
    rank = rank or (4 if length else 3)
    layout = "(batch, heads, length, dim)" if rank == 4 else "(batch, heads, dim)"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != rank:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {rank} dimensions {layout}")
        if not x.is_floating_point():
            raise ValueError(f"{name} has dtype {x.dtype}; expected a floating point type")
        if x.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {x.dtype}; expected {q.dtype}, the dtype of q")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}; expected {q.device}, the device of q")
    if q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1] or (length and q.shape != k.shape):
        raise ValueError(f"k has a shape that does not fit q: {_shapes(q=q, k=k)}; expected equal shapes")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"v has a shape that does not fit k: {_shapes(k=k, v=v)}; expected equal sizes but for the last"
        )


def _check_state(state: Tensor | None, q: Tensor, columns: int) -> None:
    if state is None:
        return
    expected, dtype = (*q.shape[:2], q.shape[-1], columns), accumulation_dtype(q.dtype)
    if tuple(state.shape) != expected:
        raise ValueError(f"state has shape {tuple(state.shape)}; expected {expected}")
    if state.dtype != dtype:
        raise ValueError(f"state has dtype {state.dtype}; expected {dtype}")
    if state.device != q.device:
        raise ValueError(f"state is on {state.device}; expected {q.device}, the device of q")


def _check_mask(mask: Tensor, k: Tensor) -> None:
    expected = (k.shape[0], k.shape[2])
    if mask.dtype != torch.bool or tuple(mask.shape) != expected:
        raise ValueError(
            f"key_padding_mask has dtype {mask.dtype} and shape {tuple(mask.shape)}; "
            f"expected torch.bool and {expected}"
        )
