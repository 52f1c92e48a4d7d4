"""Several linear maps of one input."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear_maps(x: Tensor, *maps: nn.Linear) -> Sequence[Tensor]:
    """The maps of `x: (..., D)`, all with biases or none; while compiling one product of all their weights.

    The weights are joined at each step, so that checkpoints and optimizers see separate maps: a copy, but
    three kernel launches of a training step for every further map are saved.
    """
    if not torch.compiler.is_compiling():
        return [one(x) for one in maps]
    weight = torch.cat([one.weight for one in maps])
    bias = None if maps[0].bias is None else torch.cat([one.bias for one in maps])
    return F.linear(x, weight, bias).split([one.out_features for one in maps], -1)
