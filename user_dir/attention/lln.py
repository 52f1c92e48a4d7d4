"""LLN attention (Nahshan et al. 2024, Linear Log-Normal attention): features exp(alpha q) and exp(beta k).

alpha and beta give the attention matrix the concentration of softmax attention (moment matching): with the
standard deviations sigma_q and sigma_k of queries and keys, and the constants a and b of `moment_matching`,

    s = sqrt((sigma_q^2 sigma_k^2 - b) / (2 a)),  alpha = s / sigma_q,  beta = s / sigma_k
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from causal_linear_attention import linear_attention
from causal_linear_attention.chunked import accumulation_dtype

from ..errors import UserError
from .base import SelfAttention
from .parts.exponential import (
    FLOOR,
    LOWEST,
    causal_exponential_attention,
    exponential_attention_step,
    first_sums,
)
from .parts.moment_matching import constants
from .parts.state import State
from .registry import register_attention

MOMENTUM = 0.1
# Below it a standard deviation is rounding: equal queries or keys attend evenly, and alpha, beta stay finite.
SMALLEST_SIGMA = 1e-6


@dataclass
class LLNOptions:
    """Options of "lln"."""

    statistics: str = field(
        default="running",
        metadata={
            "help": "standard deviations of q and k: running (of the batch's real tokens in training, their "
            "running average in evaluation) or batch (of the batch, padding included, always: the authors' "
            "code; its outputs depend on later tokens and on the other sentences, and it cannot decode)"
        },
    )
    a: float = field(
        default=0.0,
        metadata={
            "help": "slope a of the moment matching; 0 takes a and b for the head width: the authors' for 64 "
            "(0.14855, -0.35487, which their code has for every width), else a fit when the model is built"
        },
    )
    b: float = field(default=0.0, metadata={"help": "constant b of the moment matching, with a slope"})

    def __post_init__(self) -> None:
        if self.statistics not in ("running", "batch"):
            raise UserError(
                f"LLN attention has no statistics {self.statistics!r}; choose one of running, batch"
            )
        if self.a < 0 or (self.a == 0 and self.b != 0):
            raise UserError(
                f"the moment matching of LLN attention has a = {self.a}, b = {self.b}; "
                "give a positive a with b, or neither"
            )


def lln_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: Tensor | float,
    beta: Tensor | float,
    causal: bool,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """`out[i] = sum_j w[i, j] v[j] / sum_j w[i, j]`, `w[i, j] = sum_d exp(alpha q[i, d] + beta k[j, d])`.

    j runs up to i when causal, else over all positions. Exponentials are taken relative to (running) maxima,
    so that neither large nor small exponents overflow or vanish, and causal outputs do not depend on later
    keys. O(N D M) time and linear memory; sums are float32 (float64 for float64 inputs).

    Args:
        q, k: `(B, H, N, D)`.
        v: `(B, H, N, M)`.
        alpha, beta: positive numbers, or tensors of one element; no gradient goes to them.
        causal: a position sees itself and earlier ones only.
        key_padding_mask: bool `(B, N)`, True where a key is padding and counts for nothing.

    Returns:
        `(B, H, N, M)` in v's dtype; zero where a position sees no key.

    Raises:
        ValueError: for shapes that do not fit.
    """
    if q.dim() != 4 or q.shape != k.shape or q.shape[:3] != v.shape[:3] or v.dim() != 4:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise ValueError(f"the shapes are {shapes}; expected (B, H, N, D) for q and k, (B, H, N, M) for v")
    if key_padding_mask is not None and key_padding_mask.shape != (q.shape[0], q.shape[2]):
        shape, expected = tuple(key_padding_mask.shape), (q.shape[0], q.shape[2])
        raise ValueError(f"key_padding_mask has shape {shape}; expected {expected}")
    if q.shape[2] == 0:
        return v
    with torch.autocast(q.device.type, enabled=False):
        if causal:
            return causal_exponential_attention(q, k, v, alpha, beta, key_padding_mask)[0]
        return _full_exponential_attention(q, k, v, alpha, beta, key_padding_mask)


def _full_exponential_attention(q, k, v, alpha, beta, hidden) -> Tensor:
    dtype = accumulation_dtype(q.dtype)
    a, b = q.to(dtype) * alpha, k.to(dtype) * beta
    if hidden is not None:
        b = b.masked_fill(hidden[:, None, :, None], LOWEST)
    top = b.detach().amax(2, keepdim=True)
    exponent = a + top
    phi_q = torch.exp(exponent - exponent.detach().amax(-1, keepdim=True))
    phi_k = torch.exp(b - top)
    out = linear_attention(phi_q, phi_k, v.to(dtype), normalize=True, eps=FLOOR, key_padding_mask=hidden)
    return out.to(v.dtype)


class LogNormalScale(nn.Module):
    """alpha and beta from queries and keys, without gradient.

    In training the standard deviations are those of all real values of the batch, all heads and channels
    together, and a running average of them (weight 0.1 for the newest, a plain mean of the first ten batches)
    is kept in float32 buffers, also when the model is cast to half precision. Evaluation takes the average,
    1 before any training. Only batches that record gradients enter it, so that fairseq's activation
    checkpointing, which runs a layer twice, counts a batch once. Every worker keeps its own average, and
    worker 0's is saved.

    Args:
        a, b: the constants of the moment matching.
        running: False for the batch's standard deviations, padding included, in evaluation, too.
    """

    def __init__(self, a: float, b: float, running: bool) -> None:
        super().__init__()
        self.a, self.b, self.running = a, b, running
        self.register_buffer("sigma", torch.ones(2, dtype=torch.float32))  # of q and of k
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def average(self) -> tuple[Tensor, Tensor]:
        """alpha and beta from the running average."""
        return self._matched(self.sigma)

    def forward(self, q: Tensor, k: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """alpha and beta for `q, k: (B, H, N, d)`, `padding: (B, N)` True at padding."""
        if self.running and not self.training:
            return self.average()
        remember = self.training and torch.is_grad_enabled()
        with torch.no_grad():
            hidden = padding if self.running else None
            sigma = torch.stack([_standard_deviation(x, hidden) for x in (q, k)])
            if remember:
                self._remember(sigma)
            return self._matched(sigma)

    def _matched(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        square_q, square_k = sigma.clamp(min=SMALLEST_SIGMA).square()
        # s / sigma with s written out: the product of two large squares would overflow.
        alpha = (square_k - self.b / square_q).clamp(min=0) / (2 * self.a)
        beta = (square_q - self.b / square_k).clamp(min=0) / (2 * self.a)
        return alpha.sqrt(), beta.sqrt()

    def _remember(self, sigma: Tensor) -> None:
        newest = (1 / (self.batches + 1)).clamp(min=MOMENTUM)
        average = torch.lerp(self.sigma, sigma.to(self.sigma.dtype), newest.to(self.sigma.dtype))
        # A batch of padding, or one that overflowed, is left out.
        usable = (torch.isfinite(sigma) & (sigma > 0)).all()
        self.sigma.copy_(torch.where(usable, average, self.sigma))
        self.batches.add_(usable)

    def _apply(self, fn, recurse=True):
        before = self.sigma
        super()._apply(fn, recurse)
        if self.sigma.element_size() < 4:  # steps of the average would be rounded away
            self.sigma = before.to(self.sigma.device)
        return self


def _standard_deviation(x: Tensor, hidden: Tensor | None) -> Tensor:
    """Of the values of `x: (B, H, N, d)` at positions that are not hidden; 0 for fewer than two values."""
    x = x.to(accumulation_dtype(x.dtype))
    if hidden is None:
        hidden = torch.zeros(1, 1, dtype=torch.bool, device=x.device).expand(x.shape[0], x.shape[2])
    hidden = hidden[:, None, :, None]
    count = (~hidden).sum() * (x.shape[1] * x.shape[3])
    mean = x.masked_fill(hidden, 0.0).sum() / count.clamp(min=1)
    squares = (x - mean).masked_fill(hidden, 0.0).square().sum()
    return (squares / (count - 1).clamp(min=1)).sqrt()


@register_attention("lln")
class LLNAttention(SelfAttention):
    """`lln_attention` with alpha and beta by moment matching; no scaling by sqrt(d), no dropout inside.

    The decoding state is the (d, d + 1) sum of values and ones under the keys' exponentials, and their
    running maximum a channel. Time O(N d^2), O(d^2) a token in decoding.
    """

    Options = LLNOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        given = self.options.a, self.options.b
        a, b = given if self.options.a else constants(self.head_dim)
        self.scale = LogNormalScale(a, b, running=self.options.statistics == "running")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        alpha, beta = self.scale(q, k, padding)
        # When causal, padding stands behind all real positions, which do not look there.
        mask = None if self.causal else padding
        return lln_attention(q, k, v, alpha=alpha, beta=beta, causal=self.causal, key_padding_mask=mask)

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`; raises UserError where statistics are the batch's."""
        if not self.scale.running:
            raise UserError(
                "LLN attention with statistics 'batch' cannot decode token by token, because its outputs "
                "depend on tokens to come; evaluate the model with statistics 'running'"
            )
        total, top = first_sums(q, q)
        return {"sum": total, "maximum": top}

    def decode(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, state: State
    ) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(d^2) a token."""
        attention = exponential_attention_step if q.shape[2] == 1 else causal_exponential_attention
        with torch.autocast(q.device.type, enabled=False):
            out, (total, top) = attention(
                q, k, v, *self.scale.average(), padding, (state["sum"], state["maximum"])
            )
        return out, {"sum": total, "maximum": top}
