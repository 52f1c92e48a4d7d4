"""LLN attention (Nahshan et al. 2024, Linear Log-Normal attention): features exp(alpha q) and exp(beta k).

alpha and beta give the attention matrix the concentration of softmax attention (moment matching): with the
standard deviations sigma_q and sigma_k of queries and keys, and the constants a and b of `moment_matching`,

    s = sqrt((sigma_q^2 sigma_k^2 - b) / (2 a)),  alpha = s / sigma_q,  beta = s / sigma_k

Matching holds in a band only. With the authors' constants, d = 64 and sigma_q = sigma_k = sigma, the variance
of log P over softmax attention's is

    sigma   0.3   0.5   0.6   0.8   1.0   1.2   1.4   1.5   2.0
    ratio   9.6   1.6   1.05  0.79  0.87  1.04  1.2   1.26  1.4

(Gaussian q and k, N = 512, means of draws that scatter by 5 to 10 %): within about 20 % from 0.6 to 1.4, and
far too large below, because b < 0 keeps the line from reaching below s~^2 = -b / a.

In a causal model the statistics of a training batch include later tokens, so each training output depends a
little on the future: the training loss is optimistic. Evaluation and decoding use the running average and are
causal; validation figures are therefore sound.
"""

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from causal_linear_attention import linear_attention
from causal_linear_attention.checks import check_inputs, check_mask, check_tensors
from causal_linear_attention.chunked import accumulation_dtype, without_autocast
from causal_linear_attention.recomputing import recomputed

from ..errors import UserError, check_choice
from .base import SelfAttention
from .parts.exponential import (
    FLOOR,
    LOWEST,
    causal_exponential_attention,
    exponential_attention_step,
    first_sums,
)
from .parts.log_normal_scale import LogNormalScale
from .parts.moment_matching import constants
from .parts.new_tokens import NewTokens
from .parts.state import State
from .registry import register_attention


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
    alpha: float = field(
        default=0.0,
        metadata={"help": "fixed alpha, and beta unless given (1: before moment matching); 0 matches"},
    )
    beta: float = field(default=0.0, metadata={"help": "fixed beta, with a fixed alpha; 0: as alpha"})

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta < 0 or (self.beta and not self.alpha):
            raise UserError(
                f"the exponents of LLN attention have alpha = {self.alpha}, beta = {self.beta}; "
                "give a positive alpha, with a positive beta or without, or neither for moment matching"
            )
        check_choice("LLN attention has no statistics", self.statistics, ("running", "batch"))
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
        alpha, beta: numbers from 0 up, or tensors of one element; no gradient goes to them.
        causal: a position sees itself and earlier ones only.
        key_padding_mask: bool `(B, N)`, True where a key is padding and counts for nothing.

    Returns:
        `(B, H, N, M)` in v's dtype; zero where a position sees no key.

    Raises:
        ValueError: naming the argument, its shape, type or value, and what was expected.
    """
    check_tensors(q=q, k=k, v=v)
    check_inputs(q, k, v)
    if key_padding_mask is not None:
        check_mask(key_padding_mask, q.shape[0], q.shape[2], q.device)
    for name, scale in (("alpha", alpha), ("beta", beta)):
        if isinstance(scale, Tensor):
            if scale.numel() != 1:
                raise ValueError(f"{name} has shape {tuple(scale.shape)}; expected one element")
        elif not 0 <= scale < math.inf:
            raise ValueError(f"{name} is {scale}; expected a finite number from 0 up")
    alpha, beta = (x.detach() if isinstance(x, Tensor) else x for x in (alpha, beta))
    if q.shape[2] == 0:
        return v
    with torch.autocast(q.device.type, enabled=False):
        if causal:
            return causal_exponential_attention(q, k, v, alpha, beta, key_padding_mask)[0]
        return recomputed(_full_exponential_attention, q, k, v, alpha, beta, key_padding_mask)


def _full_exponential_attention(q, k, v, alpha, beta, padding_mask) -> Tensor:
    dtype = accumulation_dtype(q.dtype)
    a, b = q.to(dtype) * alpha, k.to(dtype) * beta
    if padding_mask is not None:
        b = b.masked_fill(padding_mask[:, None, :, None], LOWEST)
    top = b.detach().amax(2, keepdim=True)
    phi_q, phi_k = torch.softmax(a + top, -1), torch.exp(b - top)  # what softmax divides by cancels
    out = linear_attention(phi_q, phi_k, v.to(dtype), normalize=True, eps=FLOOR, padding_mask=padding_mask)
    return out.to(v.dtype)


@register_attention("lln")
class LLNAttention(SelfAttention):
    """`lln_attention` with alpha and beta by moment matching, or fixed.

    There is no scaling by sqrt(d) and no dropout inside.
    The decoding state is the (d, d + 1) sum of values and ones under the keys' exponentials, their running
    maximum per channel, and alpha and beta of evaluation, which are computed once for a text. Time O(N d^2),
    O(d^2) per token in decoding.
    """

    Options = LLNOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        given = self.options.a, self.options.b
        a, b = given if self.options.a else constants(self.head_dim)
        fixed = (self.options.alpha, self.options.beta or self.options.alpha) if self.options.alpha else None
        self.scale = LogNormalScale(a, b, self.options.statistics == "running", fixed)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        alpha, beta = self.scale(q, k, padding_mask)
        # When causal, padding follows all real positions, which do not look there.
        mask = None if self.causal else padding_mask
        return lln_attention(q, k, v, alpha=alpha, beta=beta, causal=self.causal, key_padding_mask=mask)

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`; raises UserError where statistics are the batch's."""
        if not self.scale.running and self.scale.fixed is None:
            raise UserError(
                "LLN attention with statistics 'batch' cannot decode token by token, because its outputs "
                "depend on tokens to come; evaluate the model with statistics 'running'"
            )
        total, top = first_sums(q, q)
        alpha, beta = (x.to(total.dtype).expand(len(q), 1, 1, 1) for x in self.scale.average())
        return {"sum": total, "maximum": top, "alpha": alpha, "beta": beta}

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(d^2) per token."""
        attention = causal_exponential_attention
        if q.shape[2] == 1:
            attention = partial(exponential_attention_step, backend=self.backend)
        alpha, beta = state["alpha"], state["beta"]
        if self.training:  # a segment of a text whose state is carried
            alpha, beta = self.scale(q, k, new.padding_mask)
        with without_autocast(q.device):
            sums = state["sum"], state["maximum"]
            out, (total, top) = attention(q, k, v, alpha, beta, new.padding_mask, sums)
        return out, {**state, "sum": total, "maximum": top}
