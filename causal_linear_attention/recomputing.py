"""Half as much memory in half precision: backward computes the float32 copies of forward again."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .chunked import accumulation_dtype
from .transforms import in_transform


def recomputed(function: Callable[..., Tensor], *args: Any, always: bool = False) -> Tensor:
    """`function(*args)`; with a 16-bit tensor first, or `always`, only `args` are kept for its backward pass.

    Its copies in float32, which sums need, are twice as large as the originals. A compiler itself decides
    what to recompute, forward mode lacks a backward pass, and torch.func does not accept such functions.
    """
    copied = accumulation_dtype(args[0].dtype) != args[0].dtype
    wanted = (copied or always) and torch.is_grad_enabled()
    if not wanted or in_transform() or torch.compiler.is_compiling():
        return function(*args)
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
