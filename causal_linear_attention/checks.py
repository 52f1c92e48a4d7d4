"""Checks of the public functions' arguments, each with a message of one sentence."""

import math
from itertools import pairwise
from numbers import Real

import torch
from torch import Tensor

from .chunked import accumulation_dtype, under_autocast, values_are_known


def shapes(**tensors: Tensor) -> str:
    """For a message: `q (1, 2, 3, 4), k (1, 2, 3, 5)`."""
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())


def check_tensors(**tensors: object) -> None:
    """Raises ValueError for anything but a dense tensor (a list, None, a NumPy array, a sparse tensor)."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} is of type {type(x).__name__}; expected a torch.Tensor")
        if x.layout != torch.strided or x.is_nested:
            layout = "nested" if x.is_nested else x.layout
            raise ValueError(f"{name} has layout {layout}; expected a dense tensor")


LAYOUTS = {"bhnd": "(batch, heads, length, dim)", "bnhd": "(batch, length, heads, dim)"}


def check_layout(layout: object) -> None:
    """Raises ValueError for an unknown layout."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; expected {' or '.join(LAYOUTS)}")


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rank: int = 4,
    crossed: bool = False,
    grouped: bool = False,
    layout: str = "bhnd",
) -> None:
    """Raises ValueError unless q, k and v are floating tensors of one dtype and device whose shapes fit.

    Args:
        q, k, v: `(B, H, N, D)`, or `(B, H, D)`.
        rank: the number of dimensions.
        crossed: q may have another length than k.
        grouped: q may have a multiple of k's heads.
        layout: of 4 dimensions.
    """
    heads = 2 if rank == 4 and layout == "bnhd" else 1
    layout = LAYOUTS[layout] if rank == 4 else "(batch, heads, dim)"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != rank:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {rank} dimensions {layout}")
        if not x.is_floating_point():
            raise ValueError(f"{name} has dtype {x.dtype}; expected a floating point type")
        if x.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {x.dtype}; expected {q.dtype}, the dtype of q")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}; expected {q.device}, the device of q")
    if q.shape != k.shape:
        _check_different_shapes(q, k, heads if grouped else None, 2 if crossed else None)
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"v has a shape that does not fit k: {shapes(k=k, v=v)}; expected equal sizes except the last"
        )


def _check_different_shapes(q: Tensor, k: Tensor, heads: int | None, length: int | None) -> None:
    """Raises ValueError unless q and k differ in these dimensions alone, q in a multiple of k's heads."""
    rest = [x for x in range(q.dim()) if x not in (heads, length)]
    if any(q.shape[x] != k.shape[x] for x in rest):
        but = "" if heads is None else " but for the heads"
        raise ValueError(f"k has a shape that does not fit q: {shapes(q=q, k=k)}; expected equal shapes{but}")
    if heads is None or q.shape[heads] == k.shape[heads]:
        return
    if not k.shape[heads] or not q.shape[heads] or q.shape[heads] % k.shape[heads]:
        raise ValueError(
            f"q has {q.shape[heads]} heads and k {k.shape[heads]}; expected a multiple of k's heads"
        )


def check_cu_seqlens(cu_seqlens: Tensor, q: Tensor) -> None:
    """Raises ValueError unless `cu_seqlens: (S + 1,)` says where the sequences of `q: (1, H, N, D)` begin.

    This reads its numbers, which waits for a GPU. A compiled graph checks them when it runs (RuntimeError).
    """
    check_tensors(cu_seqlens=cu_seqlens)
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens has dtype {cu_seqlens.dtype}; expected torch.int32 or torch.int64")
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2:
        raise ValueError(
            f"cu_seqlens has shape {tuple(cu_seqlens.shape)}; expected (S + 1,) for S >= 1 sequences"
        )
    if cu_seqlens.device != q.device:
        raise ValueError(f"cu_seqlens is on {cu_seqlens.device}; expected {q.device}, the device of q")
    if q.shape[0] != 1:
        raise ValueError(f"q has shape {tuple(q.shape)}; expected a batch of 1 with cu_seqlens")
    if torch.compiler.is_compiling():
        ordered = (cu_seqlens.diff() >= 0).all() & (cu_seqlens[0] == 0) & (cu_seqlens[-1] == q.shape[2])
        torch._assert_async(ordered, "cu_seqlens must start at 0, never decrease and end at N")
    elif torch._C._functorch.is_batchedtensor(cu_seqlens):
        raise ValueError("cu_seqlens differs between the examples of torch.vmap; expected one for all")
    elif values_are_known(cu_seqlens):
        _check_bounds(cu_seqlens.tolist(), q.shape[2])


def _check_bounds(bounds: list[int], length: int) -> None:
    if bounds[0] != 0:
        raise ValueError(f"cu_seqlens starts at {bounds[0]}; expected 0")
    if bounds != sorted(bounds):
        one, two = next(pair for pair in pairwise(bounds) if pair[0] > pair[1])
        raise ValueError(f"cu_seqlens decreases from {one} to {two}; expected numbers that never decrease")
    if bounds[-1] != length:
        raise ValueError(f"cu_seqlens ends at {bounds[-1]}; expected {length}, the length of q")


def check_state(
    state: Tensor, k: Tensor, columns: int, count: int | None = None, name: str = "state"
) -> None:
    """Raises ValueError unless `state` is `(count, H, D, columns)` for `k: (B, H, ..., D)`, wide enough.

    Args:
        count: B unless given.
        name: of the argument.
    """
    check_tensors(**{name: state})
    count = k.shape[0] if count is None else count
    expected, dtype = (count, k.shape[1], k.shape[-1], columns), accumulation_dtype(k.dtype)
    if tuple(state.shape) != expected:
        raise ValueError(f"{name} has shape {tuple(state.shape)}; expected {expected}")
    if state.dtype != dtype:
        raise ValueError(f"{name} has dtype {state.dtype}; expected {dtype}")
    if state.device != k.device:
        raise ValueError(f"{name} is on {state.device}; expected {k.device}, the device of q")


def check_mask(mask: Tensor, batch: int, length: int, device: torch.device) -> None:
    """Raises ValueError unless `mask` is bool, `(batch, length)` and on `device`."""
    check_tensors(padding_mask=mask)
    if mask.dtype != torch.bool or tuple(mask.shape) != (batch, length):
        raise ValueError(
            f"padding_mask has dtype {mask.dtype} and shape {tuple(mask.shape)}; "
            f"expected torch.bool and {(batch, length)}"
        )
    if mask.device != device:
        raise ValueError(f"padding_mask is on {mask.device}; expected {device}, as the input")


def check_log_decay(log_decay: Tensor, k: Tensor, heads: int, every: tuple[int, ...]) -> None:
    """Raises ValueError unless `log_decay` is `(heads,)` or `every`, float32 or k's or autocast's dtype."""
    check_tensors(log_decay=log_decay)
    # Not `in` both, which would compare a batch with the heads and so make a graph for one batch.
    if tuple(log_decay.shape) != ((heads,) if log_decay.dim() == 1 else every):
        raise ValueError(f"log_decay has shape {tuple(log_decay.shape)}; expected {(heads,)} or {every}")
    accepted = log_decay.dtype in (torch.float32, k.dtype)
    if not accepted and under_autocast(k.device):  # as a linear map leaves it
        accepted = log_decay.dtype == torch.get_autocast_dtype(k.device.type)
    if not accepted:
        names = " or ".join(map(str, dict.fromkeys((torch.float32, k.dtype))))
        raise ValueError(f"log_decay has dtype {log_decay.dtype}; expected {names}")
    if log_decay.device != k.device:
        raise ValueError(f"log_decay is on {log_decay.device}; expected {k.device}, the device of q")


def check_step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, log_decay: Tensor | None, normalize: bool
) -> None:
    """Raises ValueError unless the arguments are those of `causal_linear_attention_step`."""
    check_inputs(q, k, v, rank=3, grouped=True)
    check_state(state, k, v.shape[-1] + normalize)
    if log_decay is not None:
        check_log_decay(log_decay, k, k.shape[1], tuple(k.shape[:2]))


def check_scale(scale: object) -> None:
    """Raises ValueError unless the value is a finite number."""
    if not isinstance(scale, Real) or not math.isfinite(scale):
        raise ValueError(f"scale is {scale!r}; expected a finite number, or None for 1")


def check_normalizer(normalize: object, eps: object) -> None:
    """Raises ValueError unless `normalize` is a bool and `eps` a number from 0 up that is finite."""
    if normalize is not True and normalize is not False:
        raise ValueError(f"normalize is {normalize!r}; expected True or False")
    if not (type(eps) is float or isinstance(eps, Real)) or not 0 <= eps < math.inf:
        raise ValueError(f"eps is {eps!r}; expected a finite number from 0 up")
