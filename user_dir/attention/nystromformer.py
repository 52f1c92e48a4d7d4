"""Nystromformer (Xiong et al. 2021): softmax attention through landmarks. Bidirectional, linear cost."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype

from ..errors import UserError
from .base import SelfAttention, real_tokens
from .parts.landmarks import iterative_inverse, segment_means
from .parts.limits import check_count
from .parts.weights import softmax_over_keys
from .registry import register_attention


@dataclass
class NystromformerOptions:
    """Options of "nystromformer"."""

    landmarks: int = field(default=128, metadata={"help": "landmarks m, means of m equal segments"})
    conv_width: int = field(
        default=0,
        metadata={"help": "positions that the depth-wise convolution of the values reaches; odd, 0 for none"},
    )

    def __post_init__(self) -> None:
        check_count("--nystromformer-landmarks", self.landmarks)
        if self.conv_width and (self.conv_width < 0 or self.conv_width % 2 == 0):
            raise UserError(
                f"--nystromformer-conv-width is {self.conv_width}; it must be an odd number, or 0 for none"
            )


@register_attention("nystromformer")
class NystromformerAttention(SelfAttention):
    """`softmax(q k~^T) Z softmax(q~ k^T) v`, Z about the inverse of `softmax(q~ k~^T)` (eq. 13).

    Queries and keys are scaled by d^(-1/4); q~ and k~ are means over segments of the real positions. Rows
    shorter than the number of landmarks get the exact softmax. With `conv_width`, a convolution of the
    values over positions is added, one kernel a head. Computed in float32 (float64 for float64 inputs);
    there is no dropout. Time O(N m d + m^3).
    """

    Options = NystromformerOptions
    bidirectional_only = True

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.landmarks, width = self.options.landmarks, self.options.conv_width
        self.conv = None
        if width:
            size, around = (width, 1), (width // 2, 0)
            self.conv = nn.Conv2d(num_heads, num_heads, size, padding=around, groups=num_heads, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        if q.shape[2] == 0:
            return v
        wide = accumulation_dtype(q.dtype)
        scale = self.head_dim**-0.25
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = q.to(wide) * scale, k.to(wide) * scale, v.to(wide)
            out = self._attention(q, k, v, padding_mask)
            if self.conv is not None:
                if padding_mask is not None:
                    v = v.masked_fill(padding_mask[:, None, :, None], 0.0)
                weight = self.conv.weight.to(wide)
                out = out + F.conv2d(v, weight, padding=self.conv.padding, groups=self.num_heads)
        return out

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        length = q.shape[2]
        if length < self.landmarks:
            return _softmax(q, k, v, padding_mask)
        lengths = real_tokens(padding_mask, q)
        out = self._by_landmarks(q, k, v, padding_mask, lengths)
        if padding_mask is None:
            return out
        # A row shorter than m lies within the first m positions.
        first = slice(self.landmarks)
        short = _softmax(q[:, :, first], k[:, :, first], v[:, :, first], padding_mask[:, first])
        short = F.pad(short, (0, 0, 0, length - self.landmarks))
        return torch.where((lengths < self.landmarks)[:, None, None, None], short, out)

    def _by_landmarks(self, q, k, v, padding_mask, lengths) -> Tensor:
        query_marks = segment_means(q, lengths, self.landmarks)
        key_marks = segment_means(k, lengths, self.landmarks)
        inverse = iterative_inverse(torch.softmax(query_marks @ key_marks.mT, -1))
        collected = _softmax(query_marks, k, v, padding_mask)
        return torch.softmax(q @ key_marks.mT, -1) @ (inverse @ collected)


def _softmax(q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
    return softmax_over_keys(q @ k.mT, padding_mask) @ v
