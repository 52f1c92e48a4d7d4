"""Forward mode and `torch.func`, which see no derivative of an operator or of an `autograd.Function` here.

Where one of them is at work, PyTorch's own operators compute attention, since they know their rules.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad


def in_transform() -> bool:
    """Whether forward mode or `torch.func` is at work, whose rules an operator without derivatives lacks."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def composes() -> bool:
    """Whether only PyTorch's own operators may run: also for ONNX, which knows no others."""
    return in_transform() or in_onnx_export()


def in_onnx_export() -> bool:
    """As `torch.onnx.is_in_onnx_export`, which takes a microsecond, asked where a graph is traced."""
    return torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export()


def transformed(*grads: Tensor | None) -> bool:
    """As `in_transform`, for a backward pass, whose gradients may also be a batch of them."""
    if in_transform() or torch.compiler.is_compiling():
        return in_transform()
    batched = torch._C._functorch.is_legacy_batchedtensor  # by is_grads_batched
    return any(batched(grad) for grad in grads if grad is not None)


def gradients(
    run: Callable[..., tuple[Tensor, Tensor]],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of `run`'s inputs from its outputs' gradients, all of which a transform may see.

    `run` consists of PyTorch's operators; None for an input that is None.
    """
    given = [x for x in inputs if x is not None]

    def of_given(*given: Tensor) -> tuple[Tensor, Tensor]:
        left = iter(given)
        return run(*(None if x is None else next(left) for x in inputs))

    outputs, pull_back = torch.func.vjp(of_given, *given)
    pairs = zip(outputs, grads, strict=True)
    found = iter(pull_back(tuple(torch.zeros_like(x) if grad is None else grad for x, grad in pairs)))
    return [None if x is None else next(found) for x in inputs]
