"""Several linear maps of one input as one matrix product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.transforms import in_transform


class JoinsMaps(nn.Module):
    """A module whose `maps`, linear maps of one input, have their weights side by side in memory.

    One matrix product of a view then computes all maps. Optimizers and checkpoints still see separate
    parameters. Moving, casting, copying and unpickling the module joins the weights again; if they lie apart
    all the same, `joined_maps` copies them.
    """

    maps: tuple[str, ...] = ()

    def join_maps(self) -> None:
        """Lay weights and biases side by side if they are parameters of one dtype and device."""
        found = [self._modules.get(name) for name in self.maps]
        if all(type(one) is nn.Linear for one in found):
            _lay_side_by_side([one.weight for one in found])
            _lay_side_by_side([one.bias for one in found])

    def _apply(self, *args, **kwargs):
        super()._apply(*args, **kwargs)
        self.join_maps()
        return self

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self.join_maps()


def linear_maps(x: Tensor, *maps: nn.Linear) -> Sequence[Tensor]:
    """The maps of `x: (..., D)`, all with biases or none, each `(..., width)`."""
    if not are_plain(*maps):
        return [one(x) for one in maps]
    return joined_maps(x, *maps).split([one.out_features for one in maps], -1)


def are_plain(*maps: nn.Module) -> bool:
    """Whether these are torch's own linear maps, without hooks, so that their weights define them."""
    return all(
        type(one) is nn.Linear and not one._forward_hooks and not one._forward_pre_hooks for one in maps
    )


def joined_maps(x: Tensor, *maps: nn.Linear) -> Tensor:
    """The maps of `x: (..., D)` side by side in the last dimension."""
    weights, biases = [one.weight for one in maps], [one.bias for one in maps if one.bias is not None]
    if torch.compiler.is_compiling() or in_transform():
        return F.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)
    if not (torch.is_grad_enabled() and any(p.requires_grad for p in (x, *weights, *biases))):
        return F.linear(x, _joined(weights), _joined(biases) if biases else None)
    out = _JoinedMaps.apply(x.flatten(0, -2), len(maps), *weights, *biases)
    return out.view(*x.shape[:-1], out.shape[-1])


class _JoinedMaps(torch.autograd.Function):
    """`(x, number of maps, weights and biases) -> F.linear(x, cat(weights), cat(biases))` of rows x."""

    @staticmethod
    def forward(ctx, x, count, *parameters):
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        return F.linear(x, _joined(weights), _joined(biases) if biases else None)

    @staticmethod
    def backward(ctx, grad):
        x, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad
        sizes = [len(weight) for weight in weights]
        grad_x, grad_weights, grad_biases = (
            None,
            [None] * len(weights),
            [None] * (len(needed) - 2 - len(weights)),
        )
        if needed[0]:
            grad_x = grad @ _joined(weights).to(grad.dtype)
        if any(needed[2 : 2 + len(weights)]):
            grad_weights = (grad.mT @ x.to(grad.dtype)).split(sizes)
        if grad_biases and any(needed[2 + len(weights) :]):
            grad_biases = grad.sum(0).split(sizes)
        return grad_x, None, *grad_weights, *grad_biases


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """`torch.cat` of them, without a copy where they lie side by side and nothing is differentiated."""
    first = tensors[0]
    if not torch.is_grad_enabled() and _side_by_side(tensors):
        return first.as_strided((sum(map(len, tensors)), *first.shape[1:]), first.stride())
    return torch.cat(list(tensors))


def _side_by_side(tensors: Sequence[Tensor]) -> bool:
    storage = tensors[0].untyped_storage().data_ptr()
    end = tensors[0].storage_offset()
    for x in tensors:
        apart = x.storage_offset() != end or x.untyped_storage().data_ptr() != storage
        if apart or x.dtype != tensors[0].dtype or not x.is_contiguous():
            return False
        end += x.numel()
    return True


def _lay_side_by_side(tensors: Sequence[Tensor | None]) -> None:
    kinds = {(x.dtype, x.device, x.requires_grad) if type(x) is nn.Parameter else None for x in tensors}
    apart = len({id(x) for x in tensors}) == len(tensors)
    if len(kinds) > 1 or None in kinds or not apart or tensors[0].is_meta or _side_by_side(tensors):
        return
    whole = torch.cat([x.detach() for x in tensors])
    for x, part in zip(tensors, whole.split([len(x) for x in tensors]), strict=True):
        x.data = part
