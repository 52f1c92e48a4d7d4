"""The public functions: they check arguments, select a backend and optionally normalise.

Shapes are (batch, heads, length, dim): `q, k: (B, H, N, D)`, `v: (B, H, N, M)`. Formulas are those of
Katharopoulos et al. 2020, "Transformers are RNNs", section 3. With `normalize=True` a column of ones is
appended to v, so that numerator and denominator come from the same pass and the state is (D, M + 1):

    out[i] = q[i] @ S[i] / (q[i] @ z[i] + eps),   z[i] = sum of k[j] over j <= i

Under bfloat16 autocast q, k and v may mix bfloat16 and float32 and become bfloat16; under float16 autocast
they become the widest of their dtypes, since features may exceed float16's range. Sums stay float32.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from . import extension, packed, reference
from .checks import (
    check_cu_seqlens,
    check_inputs,
    check_layout,
    check_log_decay,
    check_mask,
    check_normalizer,
    check_scale,
    check_state,
    check_step,
    check_tensors,
)
from .chunked import (
    accumulation_dtype,
    chunked,
    grouped,
    multiplied,
    normalized,
    under_autocast,
    values_are_known,
    without_autocast,
)
from .recomputing import recomputed
from .selection import KERNELS, announce, select_backend
from .transforms import composes

_STEP_IS_COMPILED = extension.loaded("cpp")


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    scale: float | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    layout: str = "bhnd",
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """`out[i] = scale * q[i] @ S[i]`, `S[i] = exp(log_decay[i]) * S[i-1] + k[i]^T v[i]`, in O(N D M) time.

    Args:
        q, k: `(B, H, N, D)`, feature maps already applied; any strides, one floating dtype; N below
            2^28 in the CUDA kernels, 2^31 with `cu_seqlens`, any elsewhere. q may have a multiple of the
            heads of k and v: of G times as many, heads `G h` to `G h + G - 1` read state h.
        v: `(B, H, N, M)`.
        log_decay: `(H,)`, a constant per head of k, or `(B, H, N)`, a number per position, whose exponential
            the state is multiplied by before the position is added; float32, q's dtype or autocast's. None
            and zero mean no decay; at -inf a sequence begins, which sees nothing from before.
        scale: of the output; None is 1.
        normalize: divide by `q[i] @ z[i] + eps`, `z[i] = exp(log_decay[i]) * z[i-1] + k[i]`; the state then
            has M + 1 columns, the last of which is z.
        eps: added to the denominator (float32).
        initial_state: `(B, H, D, M)`, or `(B, H, D, M + 1)` with `normalize`, H as of k; float32 (float64 for
            float64 inputs). None starts from zero.
        return_state: also return the state after the last position, in the same dtype.
        cu_seqlens: int32 or int64 `(S + 1,)` on the inputs' device, as FlashAttention's: the only row of the
            batch holds S sequences, sequence s from position `cu_seqlens[s]` up to `cu_seqlens[s + 1]`, which
            may be the same. Every sequence starts again, and states are per sequence, `(S, H, D, M)`. The
            numbers are checked, which waits for a GPU.
        layout: "bnhd" for q, k, v and the output as `(B, N, H, D)` and `log_decay` as `(B, N, H)`.
        backend: "cpp" or "cuda" (the compiled kernels), "triton" (GPUs, without nvcc), "torch" (linear time
            on any device), "reference" (quadratic, for tests) or "auto": the first of these that supports
            the inputs and can run. Heads with D or M of 0, the transforms of `torch.func`, forward mode and
            `torch.onnx.export` run on "torch", whatever the kernels.

    Returns:
        `out: (B, H, N, M)` in v's dtype, or `(out, state)`.

    Raises:
        ValueError: names the argument, its shape or dtype, and what was expected.
    """
    q, k, v = _promoted_under_autocast(q, k, v)
    check_layout(layout)
    check_inputs(q, k, v, grouped=True, layout=layout)
    check_normalizer(normalize, eps)
    if log_decay is not None:
        check_log_decay(log_decay, k, k.shape[2 if layout == "bnhd" else 1], tuple(k.shape[:3]))
    if layout == "bnhd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        log_decay = log_decay if log_decay is None or log_decay.dim() == 1 else log_decay.transpose(1, 2)
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, q)
    if initial_state is not None:
        count = None if cu_seqlens is None else len(cu_seqlens) - 1
        check_state(initial_state, k, v.shape[-1] + normalize, count, "initial_state")
    if scale is not None:
        check_scale(scale)
    name = select_backend(backend, q.device, q.dtype, max(k.shape[-1], v.shape[-1]), log_decay is not None)
    if backend == "auto" and not torch.compiler.is_compiling():
        announce(name, q.device)
    cu_seqlens = _of_several(cu_seqlens)
    options = (normalize, eps, cu_seqlens, return_state, 1.0 if scale is None else float(scale))
    out, state = _attend(name, q, k, v, initial_state, log_decay, *options)
    out = out.transpose(1, 2) if layout == "bnhd" else out
    return (out, state) if return_state else out


def _attend(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    log_decay: Tensor | None,
    normalize: bool,
    eps: float,
    cu_seqlens: Tensor | None,
    return_state: bool,
    scale: float,
) -> tuple[Tensor, Tensor | None]:
    """Output and state from one backend; the state is None unless wanted."""
    wide = accumulation_dtype(q.dtype)
    if log_decay is not None:
        log_decay = log_decay.to(wide)
    if name in KERNELS and q.shape[-1] and v.shape[-1] and not composes():
        kernels = KERNELS[name].attend
        options = (normalize, eps, cu_seqlens, return_state)
        return kernels(q, k, v, state, log_decay, *options, scale=scale)
    if log_decay is not None and log_decay.dim() == 1:
        log_decay = log_decay[:, None].expand(k.shape[:3])
    run = _pytorch(name, cu_seqlens, return_state)
    dtype = v.dtype
    with without_autocast(q.device):
        if normalize:
            out, state = normalized(run, q, k, v, eps, state, log_decay)
            out = out if scale == 1 else out * scale
        else:
            q, k, v = multiplied(q, k, v, scale)
            if name == "reference" and state is not None:
                state = state.to(q.dtype)
            out, state = run(q, k, v, state, log_decay)
    return out.to(dtype), state.to(wide) if return_state else None


def causal_linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    *,
    log_decay: Tensor | None = None,
    scale: float | None = None,
    normalize: bool = False,
    eps: float = 1e-6,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """One position of `causal_linear_attention`, for decoding: O(D M) at any position.

    Args:
        q, k: `(B, H, D)`; v: `(B, H, M)`; q may have a multiple of the heads of k and v, as there.
        state: `(B, H, D, M)`, or `(B, H, D, M + 1)` with `normalize`, H as of k; float32 (float64 for float64
            inputs). It is not modified.
        log_decay: `(H,)` or `(B, H)`, H as of k; scale, normalize, eps: as in `causal_linear_attention`.
        backend: as there; but PyTorch computes where a gradient is wanted or autocast has mixed the dtypes.

    Returns:
        `out: (B, H, M)` in v's dtype and the new state.

    Raises:
        ValueError: names the argument, its shape or dtype, and what was expected.
    """
    check_normalizer(normalize, eps)
    if scale is not None:
        check_scale(scale)
    run = _compiled_step(q, k, v, state, log_decay, backend)
    if run is not None:
        try:
            decay = None if log_decay is None else log_decay.to(state.dtype).exp()
            return run(q, k, v, state, normalize, eps, decay, 1.0 if scale is None else float(scale))
        except RuntimeError:
            # The operators check their arguments as well, but these messages say more.
            check_step(q, k, v, state, log_decay, normalize)
            raise
    q, k, v = _promoted_under_autocast(q, k, v)
    check_step(q, k, v, state, log_decay, normalize)
    select_backend(backend, q.device, q.dtype)
    if log_decay is not None:
        state = reference.scaled(state, log_decay.to(state.dtype).exp()[..., None, None])
    q, k, wide = q.to(state.dtype), k.to(state.dtype), v.to(state.dtype)
    if normalize:
        wide = F.pad(wide, (0, 1), value=1.0)
    state = torch.addcmul(state, k.unsqueeze(-1), wide.unsqueeze(-2))
    groups = k.shape[1], q.shape[1] // max(k.shape[1], 1)  # with heads of q that share a state side by side
    with without_autocast(q.device):
        out = torch.matmul(q.unflatten(1, groups), state).flatten(1, 2)
    if normalize:
        out = out[..., :-1] / (out[..., -1:] + eps)
    out = out if scale is None else out * scale
    return out.to(v.dtype), state


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalize: bool = False,
    eps: float = 1e-6,
    padding_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Bidirectional linear attention `q @ (k^T v)`, two products, O(N D M).

    With 16-bit inputs the backward pass keeps q, k and v alone and makes their float32 copies again.

    Args:
        q, k: `(B, H, N, D)`, feature maps already applied (k may differ from q in length, not from v).
        v: `(B, H, N, M)`.
        normalize, eps: as in `causal_linear_attention`, with the sum of all keys.
        padding_mask: bool `(B, N)`, True where a key is padding, which is then ignored.
        cu_seqlens: as in `causal_linear_attention`: a query sees the keys of its own sequence. q and k then
            have one length.

    Returns:
        `out: (B, H, N, M)` in v's dtype; the sums are float32 (float64 for float64 inputs).

    Raises:
        ValueError: names the argument, its shape or dtype, and what was expected.
    """
    q, k, v = _promoted_under_autocast(q, k, v)
    check_inputs(q, k, v, crossed=cu_seqlens is None)
    check_normalizer(normalize, eps)
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, q)
    if padding_mask is not None:
        check_mask(padding_mask, k.shape[0], k.shape[2], k.device)
        k, v = (x.masked_fill(padding_mask[:, None, :, None], 0.0) for x in (k, v))  # 0 * NaN is NaN
    with without_autocast(q.device):
        return recomputed(_linear_attention, q, k, v, normalize, eps, _of_several(cu_seqlens))


def _linear_attention(
    q: Tensor, k: Tensor, v: Tensor, normalize: bool, eps: float, cu_seqlens: Tensor | None
) -> Tensor:
    wide = accumulation_dtype(q.dtype)
    queries, keys, values = q.to(wide), k.to(wide), v.to(wide)
    if cu_seqlens is not None:
        values = F.pad(values, (0, 1), value=1.0) if normalize else values
        out = packed.bidirectional(queries, keys, values, cu_seqlens=cu_seqlens)
        out = out[..., :-1] / (out[..., -1:] + eps) if normalize else out
    else:
        out = queries @ (keys.transpose(-2, -1) @ values)
        if normalize:
            out = out / (queries @ keys.sum(2).unsqueeze(-1) + eps)
    return out.to(v.dtype)


def _compiled_step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, log_decay: Tensor | None, backend: str
) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The kernels' step, which has no derivative, or None; the check is as short as the step."""
    if not all(isinstance(x, Tensor) for x in (q, k, v, state)) or not q.dtype == k.dtype == v.dtype:
        return None
    if log_decay is not None:
        check_tensors(log_decay=log_decay)
        if log_decay.dtype not in (torch.float32, q.dtype):
            return None
    if q.is_cuda or backend != "auto":
        kernels = KERNELS.get(select_backend(backend, q.device, q.dtype))
    else:
        kernels = KERNELS["cpp"] if _STEP_IS_COMPILED and q.is_cpu else None
    if kernels is None or q.dtype not in kernels.dtypes or composes():
        return None
    if torch.is_grad_enabled():
        if q.requires_grad or k.requires_grad or v.requires_grad or state.requires_grad:
            return None
        if log_decay is not None and log_decay.requires_grad:
            return None
    return kernels.step


def _promoted_under_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast q, k and v may differ in dtype, since it computes functions like exp in float32.

    bfloat16 autocast makes them bfloat16. float16 autocast keeps the widest, as for torch.cat: features
    beyond 65,504, which is exp(11.1), would become infinite in float16. So do float64 inputs.
    """
    check_tensors(q=q, k=k, v=v)
    mixed = q.dtype != k.dtype or q.dtype != v.dtype
    floating = all(x.is_floating_point() for x in (q, k, v))
    if mixed and floating and under_autocast(q.device):
        autocast = torch.get_autocast_dtype(q.device.type)
        if {q.dtype, k.dtype, v.dtype} == {torch.float32, torch.bfloat16} and autocast == torch.bfloat16:
            dtype = autocast
        else:
            dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        return q.to(dtype), k.to(dtype), v.to(dtype)
    return q, k, v


def _of_several(cu_seqlens: Tensor | None) -> Tensor | None:
    """The kernels' int32; None also for one sequence, known to be the whole row."""
    if cu_seqlens is None or (len(cu_seqlens) == 2 and values_are_known(cu_seqlens)):
        return None
    return cu_seqlens.to(torch.int32)


def _pytorch(
    name: str, cu_seqlens: Tensor | None, return_state: bool
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """What "torch" or "reference" runs: a function of q, k, v and the initial state."""
    run = grouped(reference.quadratic if name == "reference" else chunked)
    if cu_seqlens is None:
        return run
    if name == "reference":
        return partial(reference.each_sequence, cu_seqlens=cu_seqlens, run=run)
    return partial(packed.causal, cu_seqlens=cu_seqlens, return_state=return_state)
