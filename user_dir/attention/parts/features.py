"""Feature maps of linear attention, by the name a configuration gives them.

Both are written with `exp` of the negative part: 1 + elu keeps its precision where exp(x) is small, and
neither goes through `F.elu`, whose backward breaks under torch.compile for the strided views that heads
are (torch 2.13: its strides there are not those the compiler was told).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def elu(x: Tensor) -> Tensor:
    """x where positive, else exp(x) - 1; x's shape and dtype."""
    return F.relu(x) + torch.expm1(x.clamp(max=0))


def one_plus_elu(x: Tensor) -> Tensor:
    """1 + x where positive, else exp(x); x's shape and dtype."""
    return F.relu(x) + torch.exp(x.clamp(max=0))


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu, "1+elu": one_plus_elu}
