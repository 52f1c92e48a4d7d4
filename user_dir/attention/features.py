"""Feature maps of linear attention, by the name a configuration gives them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def one_plus_elu(x: Tensor) -> Tensor:
    """1 + elu(x), written so that exp(x) keeps its precision where it is small; x's dtype."""
    return (F.relu(x) + torch.exp(x.clamp(max=0).to(torch.promote_types(x.dtype, torch.float32)))).to(
        x.dtype
    )


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"elu": F.elu, "1+elu": one_plus_elu}
