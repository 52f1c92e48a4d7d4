"""Mixtures of discretised logistics over the levels of a pixel (Salimans et al. 2017, PixelCNN++).

Of J components a pixel has J logits a, J means m and J raw scales r, in this order. Level x of L is
y = 2x / (L - 1) - 1, half a level is d = 1 / (L - 1), s = exp(clamp(r, -7, 7)), and a component gives

    sigma((y + d - m) / s) - sigma((y - d - m) / s)

with everything below at level 0 and everything above at level L - 1, so that the levels sum to one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype

LARGEST_RAW_SCALE = 7.0


def logistic_mixture_log_prob(outputs: Tensor, levels: Tensor, count: int) -> Tensor:
    """`ln p(level)`, in float32 for half precision.

    Args:
        outputs: `(..., 3 J)`: logits, means and raw scales.
        levels: whole numbers of a shape that broadcasts to `(...)`.
        count: L, how many levels there are.

    Returns:
        The broadcast of `(...)` and the shape of `levels`.
    """
    outputs = outputs.to(accumulation_dtype(outputs.dtype))
    logits, means, raw = outputs.chunk(3, dim=-1)
    rate = torch.exp(-raw.clamp(-LARGEST_RAW_SCALE, LARGEST_RAW_SCALE))
    levels = levels.unsqueeze(-1)
    half = 1 / (count - 1)
    # The edges between levels, the same numbers for both neighbours.
    above, below = ((2 * levels + side).to(outputs.dtype) * half - 1 - means for side in (1, -1))
    upper, lower = F.logsigmoid(rate * above), F.logsigmoid(-rate * below)
    # sigma(u) - sigma(l) = sigma(u) sigma(-l) (1 - e^(l - u)), without a difference of near numbers.
    inner = upper + lower + torch.log(-torch.expm1(-2 * half * rate))
    component = torch.where(levels == 0, upper, torch.where(levels == count - 1, lower, inner))
    return torch.logsumexp(F.log_softmax(logits, dim=-1) + component, dim=-1)


def logistic_mixture_sample(outputs: Tensor, uniform: Tensor, count: int) -> Tensor:
    """A level for each pixel, `(B,)`.

    Args:
        outputs: `(B, 3 J)`, see above.
        uniform: `(B, 2)` numbers of (0, 1): for the component, and for the value.
        count: L.
    """
    outputs = outputs.to(accumulation_dtype(outputs.dtype))
    logits, means, raw = outputs.chunk(3, dim=-1)
    chosen = pick(torch.softmax(logits, dim=-1), uniform[:, 0])[:, None]
    mean = means.gather(1, chosen)[:, 0]
    scale = raw.gather(1, chosen)[:, 0].clamp(-LARGEST_RAW_SCALE, LARGEST_RAW_SCALE).exp()
    value = mean + scale * torch.logit(uniform[:, 1].to(mean.dtype), eps=1e-7)
    return ((value + 1) / 2 * (count - 1)).round().clamp(0, count - 1).long()


def pick(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Where the sum of `probabilities: (B, K)` passes `uniform: (B,)`, `(B,)`."""
    below = probabilities.cumsum(dim=-1) <= uniform.to(probabilities.dtype)[:, None]
    return below.sum(dim=-1).clamp(max=probabilities.shape[-1] - 1)
