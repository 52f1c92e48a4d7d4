"""The compiled kernels as PyTorch operators: schemas, shapes and derivatives.

    causal_linear_attention::forward   (q, k, v, state, normalize, eps, keep) -> (out, state, inverse, kept)
    causal_linear_attention::backward  -> (grad_q, grad_k, grad_v, grad_state)
    causal_linear_attention::decayed_forward, decayed_backward    the same with decays, see below
    causal_linear_attention::triton_forward, triton_backward      both on Triton, see `triton_backend.py`
    causal_linear_attention::step, triton_step                    one position, no derivative
    causal_linear_attention::norm_step, block_step, linear_step, gated_step,
                             rms_norm, rms_norm_forward, rms_norm_backward    see `decoding.py`

q may have a multiple of the heads of k and v. States are `(B, H, D, M)`, H as of k, with `cu_seqlens`
`(S, H, D, M)`; they then have no rows unless `return_state`, and neither has the gradient of a state that is
None. Gradients have q's heads; `attend` sums those of heads that share one of k. `inverse` is
1 / (q[i] @ z[i] + eps), by head of q and position, saved for the backward pass; it is empty without a
normaliser. `kept` are states (B, H, K, D, M), H as of k, for the CUDA kernels' backward pass, those before
every `kept_rows`-th position but the first of a sequence; elsewhere, or without `keep`, K is 0. With a
normaliser, `backward` needs `out` where `needs_out` says so, `triton_backward` always. `scale` multiplies the
output, on a GPU only in the forward pass without a normaliser, and as a float32; `attend` does the rest.
`decayed_forward` and `decayed_backward` take e^log_decay, (H,) or (B, H, N) of the accumulation dtype, after
v; the latter also returns the gradient of log_decay by position. `step` takes (H,) or (B, H). `attend` is
`forward` with its derivative.
The kernels live in the shared objects that `extension.py` loads.
"""

from functools import partial

import torch
from torch import Tensor
from torch.library import Library, register_fake

from . import extension, packed
from .chunked import (
    accumulation_dtype,
    chunked,
    derivatives,
    grouped,
    multiplied,
    normalized,
    without_autocast,
)
from .transforms import gradients, in_transform

NAMESPACE = "causal_linear_attention"
_NARROW = 128  # columns of the heads of which a block of the CUDA kernels holds the whole state
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? state"
_DECAYED = "Tensor q, Tensor k, Tensor v, Tensor decay, Tensor? state"
_LIBRARY = Library(NAMESPACE, "DEF")
_TOKEN = "Tensor q, Tensor k, Tensor v, Tensor direction, Tensor theta"
_OPTIONS = "bool normalize, float eps"
_FORWARD = f"{_INPUTS}, {_OPTIONS}"
_PACKED = "Tensor? cu_seqlens=None, bool return_state=True"
_SCALE = "float scale=1.0"
_RESULTS = "-> (Tensor out, Tensor state, Tensor inverse"
_GIVEN = f"Tensor grad_out, Tensor? grad_state, {_INPUTS}, Tensor inverse"
_REST = "Tensor? out=None, Tensor? cu_seqlens=None"
_GRADIENTS = "-> (Tensor, Tensor, Tensor, Tensor)"
_STEP = (
    f"Tensor q, Tensor k, Tensor v, Tensor state, {_OPTIONS}, Tensor? decay=None, {_SCALE}) "
    "-> (Tensor out, Tensor state)"
)
_SCHEMAS = (
    f"forward({_FORWARD}, bool keep, {_PACKED}, {_SCALE}) {_RESULTS}, Tensor kept)",
    f"backward({_GIVEN}, Tensor kept, {_OPTIONS}, {_REST}, {_SCALE}) {_GRADIENTS}",
    f"decayed_forward({_DECAYED}, {_OPTIONS}, bool keep, {_PACKED}, {_SCALE}) {_RESULTS}, Tensor kept)",
    f"decayed_backward(Tensor grad_out, Tensor? grad_state, {_DECAYED}, Tensor inverse, Tensor kept, "
    f"{_OPTIONS}, {_REST}, {_SCALE}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    f"triton_forward({_FORWARD}, {_PACKED}, Tensor? decay=None, {_SCALE}) {_RESULTS})",
    f"triton_backward({_GIVEN}, {_OPTIONS}, {_REST}, Tensor? decay=None) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    f"step({_STEP}",
    f"triton_step({_STEP}",
    f"norm_step({_TOKEN}, Tensor positions, Tensor state, bool one_plus) -> (Tensor out, Tensor state)",
    f"block_step({_TOKEN}, float scale, Tensor places, Tensor(a!) keys, Tensor(b!) values, bool softmax) "
    "-> Tensor",
    "rms_norm(Tensor x, float eps) -> Tensor",
    "linear_step(Tensor x, float? eps, Tensor weight, Tensor? bias, Tensor? residual) -> Tensor",
    "gated_step(Tensor x, float eps, Tensor weight, Tensor? bias, Tensor out_weight, Tensor? out_bias) "
    "-> Tensor",
    "rms_norm_forward(Tensor x, float eps) -> (Tensor out, Tensor root)",
    "rms_norm_backward(Tensor grad, Tensor out, Tensor root, float eps) -> Tensor",
)
for _schema in _SCHEMAS:
    _LIBRARY.define(_schema, tags=torch.Tag.pt2_compliant_tag)
for _name in extension.FILES:
    extension.load(_name)

forward = torch.ops.causal_linear_attention.forward.default
backward = torch.ops.causal_linear_attention.backward.default
decayed_forward = torch.ops.causal_linear_attention.decayed_forward.default
decayed_backward = torch.ops.causal_linear_attention.decayed_backward.default
triton_forward = torch.ops.causal_linear_attention.triton_forward.default
triton_backward = torch.ops.causal_linear_attention.triton_backward.default
step = torch.ops.causal_linear_attention.step.default
triton_step = torch.ops.causal_linear_attention.triton_step.default


def new_like(x: Tensor) -> Tensor:
    """Allocates as the kernels do: in x's order of dimensions if its rows are dense, else contiguous."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    result = torch.empty_like(x)
    if x.shape[-1] > 1 and result.stride(-1) != 1:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return result


def new_rows(q: Tensor, x: Tensor) -> Tensor:
    """As `new_like(x)`, but with q's heads, in q's order of heads and positions if x has others.

    The kernels copy a q whose rows are not dense, heads before positions.
    """
    if q.shape[1] == x.shape[1]:
        return new_like(x)
    (batch, heads, length), columns = q.shape[:3], x.shape[-1]
    if q.stride(1) < q.stride(2) and (q.shape[-1] <= 1 or q.stride(-1) == 1):
        return x.new_empty(batch, length, heads, columns).transpose(1, 2)
    return x.new_empty(batch, heads, length, columns)


def new_state(
    x: Tensor, v: Tensor, normalize: bool, cu_seqlens: Tensor | None = None, wanted: bool = True
) -> Tensor:
    """An uninitialised state `(B, H, D, M)`, `(B, H, D, M + 1)` if `normalize`, of the heads of x, q or k.

    Packed, B is the number of sequences, or 0 unless the state is `wanted`.
    """
    # Not len(), with which torch.compile would take the number for a constant.
    count = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1 if wanted else 0
    shape = (count, x.shape[1], x.shape[-1], v.shape[-1] + int(normalize))
    return x.new_empty(shape, dtype=accumulation_dtype(x.dtype))


def new_inverse(q: Tensor, normalize: bool) -> Tensor:
    """The uninitialised inverse of the normaliser `(B, H, N)`, `(B, H, 0)` unless `normalize`."""
    shape = (*q.shape[:2], q.shape[2] if normalize else 0)
    return q.new_empty(shape, dtype=accumulation_dtype(q.dtype))


def needs_out(q: Tensor, v: Tensor) -> bool:
    """Whether `backward` needs the output with a normaliser: on a GPU, for heads of more than 128 columns."""
    return q.device.type == "cuda" and max(q.shape[-1], v.shape[-1]) > _NARROW


def kept_rows(q: Tensor, v: Tensor) -> int:
    """Positions from one kept state to the next, as in csrc/cuda/attention.h."""
    return 1024 if q.element_size() == 2 and max(q.shape[-1], v.shape[-1]) > 64 else 512


def new_kept(k: Tensor, v: Tensor, normalize: bool, keep: bool) -> Tensor:
    """The uninitialised states that the CUDA kernels keep for the backward pass, `(B, H, count, D, M)`.

    `(B, H, count, D, M + 1)` if `normalize`; `count` is 0 unless `keep`, on other devices, and for heads of
    more than 128 columns, whose backward pass needs none.
    """
    wanted = keep and k.device.type == "cuda" and max(k.shape[-1], v.shape[-1]) <= _NARROW
    count = max(k.shape[2] - 1, 0) // kept_rows(k, v) if wanted else 0
    shape = (*k.shape[:2], count, k.shape[-1], v.shape[-1] + int(normalize))
    return k.new_empty(shape, dtype=accumulation_dtype(k.dtype))


@register_fake(f"{NAMESPACE}::forward")
def _like_forward(q, k, v, state, normalize, eps, keep, cu_seqlens=None, return_state=True, scale=1.0):
    state = new_state(k, v, normalize, cu_seqlens, return_state)
    return new_rows(q, v), state, new_inverse(q, normalize), new_kept(k, v, normalize, keep)


@register_fake(f"{NAMESPACE}::triton_forward")
def _(q, k, v, state, normalize, eps, cu_seqlens=None, return_state=True, decay=None, scale=1.0):
    return new_rows(q, v), new_state(k, v, normalize, cu_seqlens, return_state), new_inverse(q, normalize)


def new_gradients(q, k, v, state, normalize, cu_seqlens) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The uninitialised gradients of q, k, v and the initial state, all of q's heads."""
    grad_initial = new_state(q, v, normalize, cu_seqlens, state is not None)
    return new_like(q), new_rows(q, k), new_rows(q, v), grad_initial


def new_decay_gradient(q: Tensor, decayed: bool) -> Tensor:
    """The uninitialised gradient of log_decay by position, `(B, H, N)`, `(B, H, 0)` without decays."""
    return new_inverse(q, decayed)


@register_fake(f"{NAMESPACE}::backward")
def _like_backward(
    grad_out, grad_state, q, k, v, state, inverse, kept, normalize, eps, out=None, cu_seqlens=None, scale=1.0
):
    return new_gradients(q, k, v, state, normalize, cu_seqlens)


@register_fake(f"{NAMESPACE}::decayed_forward")
def _(q, k, v, decay, *rest, **options):
    return _like_forward(q, k, v, *rest, **options)


@register_fake(f"{NAMESPACE}::decayed_backward")
def _(grad_out, grad_state, q, k, v, decay, *rest, **options):
    return *_like_backward(grad_out, grad_state, q, k, v, *rest, **options), new_decay_gradient(q, True)


@register_fake(f"{NAMESPACE}::triton_backward")
def _(grad_out, grad_state, q, k, v, state, inverse, normalize, eps, out=None, cu_seqlens=None, decay=None):
    return *new_gradients(q, k, v, state, normalize, cu_seqlens), new_decay_gradient(q, decay is not None)


@register_fake(f"{NAMESPACE}::triton_step")
@register_fake(f"{NAMESPACE}::step")
def _(q, k, v, state, normalize, eps, decay=None, scale=1.0):
    return q.new_empty(*q.shape[:2], v.shape[-1]), state.new_empty(state.shape)


@register_fake(f"{NAMESPACE}::norm_step")
def _(q, k, v, direction, theta, positions, state, one_plus):
    return v.new_empty(v.shape), state.new_empty(state.shape)


@register_fake(f"{NAMESPACE}::block_step")
def _(q, k, v, direction, theta, scale, places, keys, values, softmax):
    return v.new_empty(v.shape)


@register_fake(f"{NAMESPACE}::rms_norm")
def _(x, eps):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@register_fake(f"{NAMESPACE}::linear_step")
def _(x, eps, weight, bias, residual):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@register_fake(f"{NAMESPACE}::gated_step")
def _(x, eps, weight, bias, out_weight, out_bias):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@register_fake(f"{NAMESPACE}::rms_norm_forward")
def _(x, eps):
    root = x.new_empty(x.shape[:-1].numel(), dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), root


@register_fake(f"{NAMESPACE}::rms_norm_backward")
def _(grad, out, root, eps):
    return torch.empty_like(out, memory_format=torch.contiguous_format)


class _Forward(torch.autograd.Function):
    """`forward` with its derivative.

    It lies above the operator: a Python function registered as the operator's own derivative makes
    each call 20 to 35 microseconds slower, with or without gradients.
    """

    @staticmethod
    def forward(ctx, q, k, v, state, log_decay, cu_seqlens, normalize, eps, triton, return_state, scale):
        given = (q, k, v, state, log_decay, cu_seqlens, normalize, eps, triton, return_state, scale)
        out, final, inverse, *kept = _forward(*given, keep=True)
        kept = kept[0] if kept else None
        seen = out if normalize and (triton or needs_out(q, v)) else None
        ctx.save_for_backward(q, k, v, state, log_decay, cu_seqlens, inverse, kept, seen)
        ctx.normalize, ctx.eps, ctx.triton, ctx.return_state, ctx.scale = given[6:]
        ctx.set_materialize_grads(False)
        return out, final

    @staticmethod
    def backward(ctx, grad_out, grad_state):
        q, k, v, state, log_decay, cu_seqlens, inverse, kept, out = ctx.saved_tensors
        if not ctx.return_state:
            grad_state = None  # a compiled graph comes with zeros like the state, which may have no rows
        if torch.is_grad_enabled() or in_transform():
            grads = _differentiable(ctx, (q, k, v, state, log_decay), cu_seqlens, grad_out, grad_state)
            return *grads, *(None,) * 6
        if grad_out is None:
            grad_out = torch.zeros_like(new_rows(q, v))
        scale = ctx.scale
        if scale != 1 and (ctx.triton or q.is_cuda):  # see above
            grad_out, scale = grad_out * scale, 1.0
        given, options = (grad_out, grad_state, q, k, v), (ctx.normalize, ctx.eps, out, cu_seqlens)
        decay = None if log_decay is None else log_decay.exp()
        if ctx.triton:
            *grads, grad_decay = triton_backward(*given, state, inverse, *options, decay)
        elif log_decay is None:
            *grads, grad_decay = *backward(*given, state, inverse, kept, *options, scale), None
        else:
            *grads, grad_decay = decayed_backward(*given, decay, state, inverse, kept, *options, scale)
        grad_decay = None if log_decay is None else _by_head(grad_decay, k)
        if log_decay is not None and log_decay.dim() == 1:
            grad_decay = grad_decay.sum((0, 2))
        grad_q, *grads = grads[0], *(_by_head(x, k) for x in grads[1:])
        grad_state = None if state is None else grads[2]
        return grad_q, *grads[:2], grad_state, grad_decay, *(None,) * 6


def _by_head(x: Tensor, k: Tensor) -> Tensor:
    """From q's heads to k's: the sum of the heads of q that share one of k."""
    heads = k.shape[1]
    return x if x.shape[1] == heads else x.unflatten(1, (heads, -1)).sum(2)


def _forward(q, k, v, state, log_decay, cu_seqlens, normalize, eps, triton, return_state, scale, keep):
    decay = None if log_decay is None else log_decay.exp()
    if triton:
        return triton_forward(q, k, v, state, normalize, eps, cu_seqlens, return_state, decay, scale)
    if decay is None:
        return forward(q, k, v, state, normalize, eps, keep, cu_seqlens, return_state, scale)
    return decayed_forward(q, k, v, decay, state, normalize, eps, keep, cu_seqlens, return_state, scale)


def _differentiable(ctx, inputs, cu_seqlens, grad_out, grad_state) -> list[Tensor | None]:
    """The gradients with their own graph, for higher-order derivatives: PyTorch's path again."""
    run = grouped(chunked) if cu_seqlens is None else partial(packed.causal, cu_seqlens=cu_seqlens)

    def outputs_of(q, k, v, state, log_decay):
        if log_decay is not None and log_decay.dim() == 1:
            log_decay = log_decay[:, None].expand(k.shape[:3])
        if ctx.normalize:
            out, state = normalized(run, q, k, v, ctx.eps, state, log_decay)
            return out * ctx.scale, state
        out, state = run(*multiplied(q, k, v, ctx.scale), state, log_decay)
        return out.to(v.dtype), state

    with without_autocast(inputs[0].device):
        if in_transform():
            return gradients(outputs_of, inputs, (grad_out, grad_state))
        # Views: a gradient ends at its own argument, also where one argument is computed from another.
        inputs = [None if x is None else x.view_as(x) for x in inputs]
        wanted = [x for x in inputs if x is not None and x.requires_grad]
        found = iter(derivatives(outputs_of(*inputs), wanted, (grad_out, grad_state), create_graph=True))
    return [next(found) if x is not None and x.requires_grad else None for x in inputs]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    log_decay: Tensor | None,
    normalize: bool,
    eps: float,
    cu_seqlens: Tensor | None = None,
    return_state: bool = True,
    triton: bool = False,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Output and state of `forward` or `triton_forward`, with the derivative they lack."""
    if scale != 1 and (triton or q.is_cuda) and (normalize or q.dtype == torch.float64):
        given = (q, k, v, state, log_decay, normalize, eps, cu_seqlens, return_state, triton)
        out, state = attend(*given)
        return out * scale, state
    wanted = q.requires_grad or k.requires_grad or v.requires_grad
    wanted = wanted or (state is not None and state.requires_grad)
    wanted = wanted or (log_decay is not None and log_decay.requires_grad)
    if torch.is_grad_enabled() and wanted:
        if torch.compiler.is_compiling():
            # The compiler refuses one tensor as two inputs of a Function, q as k say: views are others.
            k, v = k.view_as(k), v.view_as(v)
        return _Forward.apply(
            q, k, v, state, log_decay, cu_seqlens, normalize, eps, triton, return_state, scale
        )
    arguments = (q, k, v, state, log_decay, cu_seqlens, normalize, eps, triton, return_state, scale)
    return _forward(*arguments, keep=False)[:2]
