"""Several linear maps of one input as one matrix product."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.decoding import few_rows, linear_step
from causal_linear_attention.fused_outputs import aligned_rows
from causal_linear_attention.transforms import in_transform, transformed


class _Joined(NamedTuple):
    """Views of the weights and biases of all maps, which lie at `addresses`."""

    addresses: list[int]
    weight: Tensor
    bias: Tensor | None


class JoinsMaps(nn.Module):
    """A module whose `maps`, linear maps of one input, have their weights side by side in memory.

    One matrix product of a view then computes all maps. Optimizers and checkpoints still see separate
    parameters. Moving, casting, copying and unpickling the module joins the weights again; if they lie apart
    all the same, `joined_maps` copies them.
    """

    maps: tuple[str, ...] = ()
    aligned = False  # whether `joined_maps` is `aligned_linear`, for maps whose width may be anything
    _joined: _Joined | None = None

    def join_maps(self) -> None:
        """Lay weights and biases side by side if they are parameters of one dtype and device."""
        self._joined = None
        if not self.plain_maps():
            return
        weights, biases = self._parameters_of_maps()
        if _lay_side_by_side(weights) and (not biases or _lay_side_by_side(biases)):
            bias = _whole(biases) if biases else None
            self._joined = _Joined(_addresses(weights + biases), _whole(weights), bias)

    def plain_maps(self) -> bool:
        """Whether the maps are torch's own, without hooks, so that their weights define them."""
        return all(is_plain(self._modules.get(name)) for name in self.maps)

    def joined_maps(self, x: Tensor, kernels: bool = False) -> Tensor:
        """All maps of `x: (..., D)`, which are plain, side by side in the last dimension.

        With `kernels` by them for few rows `(N, B, D)`; see `few_rows`.
        """
        weights, biases = self._parameters_of_maps()
        if torch.compiler.is_compiling() or in_transform():
            return F.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)
        joined = self._side_by_side(weights, biases)
        if kernels and joined is not None and few_rows(x):
            return linear_step(x, None, joined.weight, joined.bias, None)
        if torch.is_grad_enabled() and any(p.requires_grad for p in (x, *weights, *biases)):
            rows = x.flatten(0, -2)
            out = _JoinedMaps.apply(rows, joined, self.aligned, len(weights), *weights, *biases)
            return out.view(*x.shape[:-1], out.shape[-1])
        linear = aligned_linear if self.aligned else F.linear
        return linear(x, *_weight_and_bias(joined, weights, biases))

    def separate_maps(self, x: Tensor, kernels: bool = False) -> Sequence[Tensor]:
        """The maps of `x: (..., D)`, each `(..., width)`; `kernels` as in `joined_maps`."""
        maps = [self._modules[name] for name in self.maps]
        if not self.plain_maps():
            return [one(x) for one in maps]
        return self.joined_maps(x, kernels).split([one.out_features for one in maps], -1)

    def joined_parameters(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight and bias of all maps together, as views; None unless they are plain and side by side."""
        if not self.plain_maps() or (joined := self._side_by_side(*self._parameters_of_maps())) is None:
            return None
        return joined.weight, joined.bias

    def _side_by_side(self, weights: list[Tensor], biases: list[Tensor]) -> _Joined | None:
        joined = self._joined
        fits = joined is not None and joined.addresses == _addresses(weights + biases)
        return joined if fits else None

    def _parameters_of_maps(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weights, and biases of those maps that have one."""
        found = [self._modules[name]._parameters for name in self.maps]
        biases = [one["bias"] for one in found]
        return [one["weight"] for one in found], [bias for bias in biases if bias is not None]

    def _apply(self, *args, **kwargs):
        super()._apply(*args, **kwargs)
        self.join_maps()
        return self

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "_joined"}

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self.join_maps()


def is_plain(linear: nn.Module | None) -> bool:
    """Whether this is torch's own linear map, without hooks."""
    return type(linear) is nn.Linear and not has_hooks(linear)


def map_rows(linear: nn.Linear, x: Tensor, kernels: bool) -> Tensor:
    """`linear(x)` of `x: (N, B, D)`, with `kernels` by them for few rows; see `few_rows`."""
    if kernels and few_rows(x) and is_plain(linear):
        return linear_step(x, None, linear.weight, linear.bias, None)
    return linear(x)


def has_hooks(module: nn.Module) -> bool:
    """Whether anything is called before or after the module's `forward` or in its backward pass."""
    forward, backward = module._forward_hooks, module._backward_hooks
    return bool(forward or module._forward_pre_hooks or backward or module._backward_pre_hooks)


def aligned_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` into `aligned_rows` where x is `(N, D)` of many rows; records no gradient."""
    fits = x.shape[0] >= _FEW_ROWS and x.dim() == 2 and x.dtype == weight.dtype
    fits = fits and type(x) is Tensor and type(weight) in (Tensor, nn.Parameter)
    if (
        not fits
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled(x.device.type)
        or transformed(x)
    ):
        return F.linear(x, weight, bias)
    with torch.no_grad():
        out = aligned_rows(x, len(x), len(weight))
        return torch.mm(x, weight.T, out=out) if bias is None else torch.addmm(bias, x, weight.T, out=out)


_FEW_ROWS = 16


class _JoinedMaps(torch.autograd.Function):
    """`(x, joined, aligned, count, weights and biases) -> F.linear(x, cat(weights), cat(biases))`.

    Of `count` maps, by `aligned_linear` or not.
    """

    @staticmethod
    def forward(ctx, x, joined, aligned, count, *parameters):
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        ctx.joined = joined
        linear = aligned_linear if aligned else F.linear
        return linear(x, *_weight_and_bias(joined, weights, biases))

    @staticmethod
    def backward(ctx, grad):
        x, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad
        sizes = [len(weight) for weight in weights]
        grad_x, grad_weights = None, [None] * len(weights)
        grad_biases = [None] * (len(needed) - 4 - len(weights))
        if needed[0]:
            joined = None if torch.is_grad_enabled() else ctx.joined
            grad_x = grad @ _weight_and_bias(joined, weights, [])[0].to(grad.dtype)
        if any(needed[4 : 4 + len(weights)]):
            grad_weights = (grad.mT @ x.to(grad.dtype)).split(sizes)
        if grad_biases and any(needed[4 + len(weights) :]):
            grad_biases = grad.sum(0).split(sizes)
        return grad_x, None, None, None, *grad_weights, *grad_biases


def _weight_and_bias(
    joined: _Joined | None, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None]:
    if joined is not None:
        return joined.weight, joined.bias
    return torch.cat(list(weights)), torch.cat(list(biases)) if biases else None


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [x.data_ptr() for x in tensors]


def _whole(tensors: Sequence[Tensor]) -> Tensor:
    """`torch.cat` of tensors that lie side by side, a view."""
    first = tensors[0].detach()
    return first.as_strided((sum(map(len, tensors)), *first.shape[1:]), first.stride())


def _lay_side_by_side(tensors: Sequence[Tensor]) -> bool:
    """Move the parameters into one piece of memory, in their order; False if their kinds differ."""
    kinds = {(x.dtype, x.device, x.requires_grad) if type(x) is nn.Parameter else None for x in tensors}
    apart = len({id(x) for x in tensors}) == len(tensors)
    if len(kinds) > 1 or None in kinds or not apart or tensors[0].is_meta:
        return False
    if not _side_by_side(tensors):
        whole = torch.cat([x.detach() for x in tensors])
        for x, part in zip(tensors, whole.split([len(x) for x in tensors]), strict=True):
            x.data = part
    return True


def _side_by_side(tensors: Sequence[Tensor]) -> bool:
    storage = tensors[0].untyped_storage().data_ptr()
    end = tensors[0].storage_offset()
    for x in tensors:
        apart = x.storage_offset() != end or x.untyped_storage().data_ptr() != storage
        if apart or x.dtype != tensors[0].dtype or not x.is_contiguous():
            return False
        end += x.numel()
    return True
