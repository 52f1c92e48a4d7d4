"""The compiled kernels as PyTorch operators: schemas, shapes, derivatives and autocast.

    causal_linear_attention::forward   (q, k, v, state, normalize, eps) -> (out, state, inverse)
    causal_linear_attention::backward  -> (grad_q, grad_k, grad_v, grad_state)
    causal_linear_attention::step      one position, no derivative

`inverse` is 1 / (q[i] @ z[i] + eps), (B, H, N), saved for the backward pass; it is empty without a
normaliser. The kernels live in the shared objects that `extension.py` loads.
"""

import torch
from torch import Tensor
from torch.library import Library, register_fake

from . import extension
from .chunked import accumulation_dtype, chunked, normalized

NAMESPACE = "causal_linear_attention"
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? state"
_LIBRARY = Library(NAMESPACE, "DEF")
_LIBRARY.define(
    f"forward({_INPUTS}, bool normalize, float eps) -> (Tensor out, Tensor state, Tensor inverse)",
    tags=torch.Tag.pt2_compliant_tag,
)
_LIBRARY.define(
    f"backward(Tensor grad_out, Tensor? grad_state, {_INPUTS}, Tensor inverse, "
    "bool normalize, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
_LIBRARY.define(
    "step(Tensor q, Tensor k, Tensor v, Tensor state, bool normalize, float eps) "
    "-> (Tensor out, Tensor state)",
    tags=torch.Tag.pt2_compliant_tag,
)
for _name in extension.FILES:
    extension.load(_name)

forward = torch.ops.causal_linear_attention.forward.default
backward = torch.ops.causal_linear_attention.backward.default
step = torch.ops.causal_linear_attention.step.default


def _new_like(x: Tensor) -> Tensor:
    """Allocates as the kernels do: in x's order of dimensions if its rows are dense, else contiguous."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    result = torch.empty_like(x)
    if x.shape[-1] > 1 and result.stride(-1) != 1:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return result


def _new_state(q: Tensor, v: Tensor, normalize: bool) -> Tensor:
    shape = (*q.shape[:2], q.shape[-1], v.shape[-1] + normalize)
    return q.new_empty(shape, dtype=accumulation_dtype(q.dtype))


@register_fake(f"{NAMESPACE}::forward")
def _(q, k, v, state, normalize, eps):
    inverse = q.new_empty((*q.shape[:2], q.shape[2] if normalize else 0), dtype=accumulation_dtype(q.dtype))
    return _new_like(v), _new_state(q, v, normalize), inverse


@register_fake(f"{NAMESPACE}::backward")
def _(grad_out, grad_state, q, k, v, state, inverse, normalize, eps):
    return _new_like(q), _new_like(k), _new_like(v), _new_state(q, v, normalize)


@register_fake(f"{NAMESPACE}::step")
def _(q, k, v, state, normalize, eps):
    return v.new_empty(v.shape), state.new_empty(state.shape)


class _Forward(torch.autograd.Function):
    """What torch.library.register_autograd would make, without the 40 microseconds that it adds to a call."""

    @staticmethod
    def forward(ctx, keys, q, k, v, state, normalize, eps):
        outputs = _without_derivative(keys, q, k, v, state, normalize, eps)
        ctx.save_for_backward(q, k, v, state, outputs[2])
        ctx.normalize, ctx.eps = normalize, eps
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx, grad_out, grad_state, _):
        q, k, v, state, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_differentiable(ctx, (q, k, v, state), grad_out, grad_state), None, None
        if grad_out is None:
            grad_out = torch.zeros_like(v)
        grads = backward(grad_out, grad_state, q, k, v, state, inverse, ctx.normalize, ctx.eps)
        return None, *grads[:3], None if state is None else grads[3], None, None


def _without_derivative(keys, *arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return forward.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


def _with_derivative(keys, q, k, v, state, normalize, eps):
    wanted = q.requires_grad or k.requires_grad or v.requires_grad
    if torch.is_grad_enabled() and (wanted or (state is not None and state.requires_grad)):
        return _Forward.apply(keys, q, k, v, state, normalize, eps)
    return _without_derivative(keys, q, k, v, state, normalize, eps)


def _differentiable(ctx, inputs, grad_out, grad_state) -> list[Tensor | None]:
    """The gradients with their own graph, for higher-order derivatives: PyTorch's path again."""
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    if ctx.normalize:
        outputs = normalized(chunked, *inputs[:3], ctx.eps, inputs[3])
    else:
        outputs = chunked(*inputs)
    pairs = [(x, g) for x, g in zip(outputs, (grad_out, grad_state), strict=True) if g is not None]
    outputs, grads = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if x is not None and x.requires_grad else None for x in inputs]


_LIBRARY.impl("forward", _with_derivative, "Autograd", with_keyset=True)


def promote(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast q, k and v may differ in dtype: the widest of them, as for torch.cat."""
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _autocast(key: str):
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(q, k, v, state, normalize, eps):
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return forward(*promote(q, k, v), state, normalize, eps)

    return kernel


for _key in ("AutocastCPU", "AutocastCUDA"):
    _LIBRARY.impl("forward", _autocast(_key), _key)
