"""Performer (Choromanski et al. 2021): FAVOR+, random features of the softmax kernel. O(N m d)."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_linear_attention import causal_linear_attention, linear_attention
from causal_linear_attention.chunked import CHUNK, accumulation_dtype
from causal_linear_attention.recomputing import recomputed

from ..errors import UserError
from .base import SelfAttention
from .linear import next_sums
from .parts.limits import check_count
from .parts.new_tokens import NewTokens
from .parts.sampling import SavedSeed
from .parts.state import State
from .registry import register_attention

# Added to every feature, and to every component of the causal sum of keys, by performer-pytorch.
EPSILON, KEY_SUM_EPSILON = 1e-4, 1e-6
# The floor of the denominator in the comparison runs' code.
PAPER_FLOOR = 1e-2
# Where no key counts, the sums are 0 / TINY.
TINY = 1e-30
# The maximum over no keys: finite, so that differences are, and below every exponent.
LOWEST = -1e30
# By how much the running maximum may rise within a sequence whose keys share one reference: exp(60) is far
# from float32's end, and what becomes zero is below exp(-87 + 60) of the maximum, where EPSILON counts alone.
LARGEST_RISE = 60.0


@dataclass
class PerformerOptions:
    """Options of "performer"."""

    features: int = field(default=64, metadata={"help": "random features of each head"})
    redraw: int = field(
        default=1000,
        metadata={"help": "updates between draws of the random features; 0 for never", "size": False},
    )
    paper: bool = field(
        default=False,
        metadata={
            "help": "as in the runs of the papers' tables: 1e-4 added after the scaling of the features, "
            "denominators of at least 1e-2, new features at each training step, and a key maximum "
            "over the whole sequence, so that a causal output sees the future a little and cannot be decoded"
        },
    )

    def __post_init__(self) -> None:
        check_count("--performer-features", self.features)
        if self.redraw < 0:
            raise UserError(
                f"--performer-redraw is {self.redraw}; it must be a number of updates, or 0 for never"
            )


@register_attention("performer")
class PerformerAttention(SavedSeed, SelfAttention):
    """`phi(q) sum phi(k)^T v / phi(q) . sum phi(k)` with random features in performer-pytorch's form.

        a_j(x) = d^(-1/4) omega_j . x,   r(x) = |x|^2 / (2 sqrt(d))
        phi_q(x)_j = exp(a_j - r - max over j of a_j) + 1e-4
        phi_k(x)_j = exp(a_j - r - max over keys and j of a_j) + 1e-4

    The maxima carry no gradient. Causal: the maximum runs over the keys seen so far, and 1e-6 sqrt(m) is
    added to every component of the key sum. omega is one matrix per head, orthogonal in blocks, saved with
    the model and used in training and evaluation; redraws follow from a saved seed and the number of updates,
    so that all processes, and a run that is resumed, draw the same. No dropout. Decoding state: m + 1 by
    d + 1.
    """

    Options = PerformerOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            projection.reset_parameters()
        self.keep_seed()
        self.register_buffer("redraws", torch.zeros((), dtype=torch.long, device="cpu"))
        # `eval_proj` is the name in the authors' checkpoints.
        self.register_buffer("eval_proj", self._drawn(0))

    def _drawn(self, redraw: int) -> Tensor:
        count = self.options.features
        return orthogonal_features(self.num_heads, count, self.head_dim, self.generator(redraw))

    @torch.no_grad()
    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each update: redraws the features when it is time."""
        if self.options.paper or not self.options.redraw:
            return
        redraw = num_updates // self.options.redraw
        if redraw != int(self.redraws):
            self.eval_proj.copy_(self._drawn(redraw))
            self.redraws.fill_(redraw)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        state_dict.setdefault(f"{prefix}redraws", self.redraws)  # the authors' checkpoints have none
        super()._load_from_state_dict(state_dict, prefix, *args)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        if q.shape[2] == 0:
            return v
        with torch.autocast(q.device.type, enabled=False):
            if self.options.paper:
                return self._attend_as_in_the_paper(q, k, v, padding_mask)
            if self.causal:
                return self._attend_causally(q, k, v, padding_mask, self.first_state(q))[0]
            return recomputed(self._attend_fully, q, k, v, padding_mask)

    def _attend_fully(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        phi_q = self._query_features(q)
        exponents, tops = self._key_exponents(k, padding_mask)
        phi_k = torch.exp(exponents - tops.amax(2)[:, :, None, None])
        features = _with_plain_sum(phi_q, phi_q), _with_ones(phi_k, padding_mask)
        return linear_attention(*features, v.to(phi_q.dtype), normalize=True, eps=TINY)

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`: the running maximum, and sums relative to it.

        Rows of the sum: the m features without their epsilon, then plain sums, which it multiplies; the last
        column sums the keys.
        """
        batch, heads, _, dim = q.shape
        features, dtype = self.options.features, accumulation_dtype(q.dtype)
        total = q.new_zeros(batch, heads, features + 1, dim + 1, dtype=dtype)
        total[..., -1, -1] = KEY_SUM_EPSILON * features**0.5 / EPSILON
        return {"max": q.new_full((batch, heads, 1), LOWEST, dtype=dtype), "sum": total}

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(m d) per token. Raises UserError in the paper's form."""
        if self.options.paper:
            raise UserError(
                "performer attention in the paper's form (--performer-paper) takes its key maximum over the "
                "whole sequence and cannot decode step by step; use a model trained without it"
            )
        with torch.autocast(q.device.type, enabled=False):
            return self._attend_causally(q, k, v, new.padding_mask, state)

    def _attend_causally(self, q, k, v, padding_mask, state) -> tuple[Tensor, State]:
        phi_q = self._query_features(q)
        exponents, tops = self._key_exponents(k, padding_mask)
        level = torch.cat([state["max"], tops], 2).cummax(2).values
        end, v = level[:, :, -1:], v.to(phi_q.dtype)
        rise = end - level[:, :, 1:2]
        if torch.compiler.is_compiling() or bool((rise > LARGEST_RISE).any()):
            out, total = _sums_by_chunks(phi_q, exponents, v, padding_mask, level, state["sum"])
            return out[..., :-1] / out[..., -1:], {"max": end, "sum": total}
        queries = _with_plain_sum(phi_q * torch.exp(end - level[:, :, 1:]).unsqueeze(-1), phi_q)
        keys = _with_ones(torch.exp(exponents - end.unsqueeze(-1)), padding_mask)
        total = _rescaled(state["sum"], state["max"] - end)
        out, total = next_sums(queries, keys, v, total, normalize=True, eps=0.0, backend=self.backend)
        return out, {"max": end, "sum": total}

    def _attend_as_in_the_paper(self, q, k, v, padding_mask) -> Tensor:
        phi_q, phi_k = self._features_of_the_paper(q, k, padding_mask)
        values = F.pad(v.to(phi_q.dtype), (0, 1), value=1.0)
        if self.causal:
            sums = causal_linear_attention(phi_q, phi_k, values, backend=self.backend)
        else:
            sums = linear_attention(phi_q, phi_k, values)
        return sums[..., :-1] / sums[..., -1:].clamp(min=PAPER_FLOOR)

    def _features_of_the_paper(
        self, q: Tensor, k: Tensor, padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Features of queries and keys, both `(B, H, N, m)`; features of padding are zero."""
        omega = torch.randn_like(self.eval_proj) if self.training else self.eval_proj
        scale = self.options.features**-0.5
        phi_q = self._query_features(q, omega, 0.0) * scale + EPSILON
        exponents, tops = self._key_exponents(k, padding_mask, omega)
        phi_k = torch.exp(exponents - tops.amax(2)[:, :, None, None]) * scale + EPSILON
        if padding_mask is not None:
            phi_k = phi_k.masked_fill(padding_mask[:, None, :, None], 0.0)
        return phi_q, phi_k

    def _projected(self, x: Tensor, omega: Tensor | None) -> tuple[Tensor, Tensor]:
        """a: `(B, H, N, m)` and r: `(B, H, N, 1)` of the class's docstring, float32 for half precision."""
        x = x.to(accumulation_dtype(x.dtype))
        omega = self.eval_proj if omega is None else omega
        a = (x * self.head_dim**-0.25) @ omega.to(x.dtype).mT
        return a, x.square().sum(-1, keepdim=True) * (0.5 * self.head_dim**-0.5)

    def _query_features(self, q: Tensor, omega: Tensor | None = None, epsilon: float = EPSILON) -> Tensor:
        a, r = self._projected(q, omega)
        return torch.exp(a - r - a.detach().amax(-1, keepdim=True)) + epsilon

    def _key_exponents(
        self, k: Tensor, padding_mask: Tensor | None, omega: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """a - r, `(B, H, N, m)`, -inf at padding, and the maxima of a over the features, `(B, H, N)`."""
        a, r = self._projected(k, omega)
        exponents, tops = a - r, a.detach().amax(-1)
        if padding_mask is None:
            return exponents, tops
        hidden = padding_mask[:, None, :]
        return exponents.masked_fill(hidden.unsqueeze(-1), -torch.inf), tops.masked_fill(hidden, LOWEST)


def orthogonal_features(heads: int, features: int, dim: int, generator: torch.Generator) -> Tensor:
    """Rows `(heads, features, dim)`, orthogonal within blocks of `dim`, as long as Gaussian vectors are.

    The signs make R's diagonal positive: without them Q is not uniform (Mezzadri 2007), the rows have a mean
    of about -0.1, and the features are biased.
    """
    blocks = -(-features // dim)
    gaussian = torch.randn(heads, blocks, dim, dim, generator=generator, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    rows = q.mT.flatten(1, 2)[:, :features]
    lengths = torch.randn(heads, features, dim, generator=generator, device="cpu").norm(dim=-1, keepdim=True)
    return rows * lengths


def _with_plain_sum(scaled: Tensor, phi_q: Tensor) -> Tensor:
    """Query features with a further one, which reads the plain sums: epsilon times the sum of the others."""
    return torch.cat([scaled, EPSILON * phi_q.sum(-1, keepdim=True)], -1)


def _with_ones(phi_k: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Key features with a further one that is 1 for every real key."""
    phi_k = F.pad(phi_k, (0, 1), value=1.0)
    return phi_k if padding_mask is None else phi_k.masked_fill(padding_mask[:, None, :, None], 0.0)


def _rescaled(total: Tensor, difference: Tensor) -> Tensor:
    """The sums `(B, H, m + 1, d + 1)` relative to a maximum that is larger by `-difference: (B, H, 1)`."""
    factor = torch.exp(difference).unsqueeze(-1)
    return torch.cat([total[:, :, :-1] * factor, total[:, :, -1:]], 2)


def _sums_by_chunks(
    phi_q: Tensor, exponents: Tensor, v: Tensor, padding_mask: Tensor | None, level: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """Numerators and denominators `(B, H, N, d + 1)` and the final sums, however far the maximum rises.

    Inside a chunk every pair of positions is weighed by the difference of their own running maxima `level`
    `(B, H, 1 + N)`, whose first entry belongs to `total`. Quadratic in the chunk, linear in N.
    """
    values, outs = F.pad(v, (0, 1), value=1.0), []
    for start in range(0, v.shape[2], CHUNK):
        here = slice(start, start + CHUNK)
        before, own = level[:, :, start : start + 1], level[:, :, 1:][:, :, here]
        end, mask = own[:, :, -1:], None if padding_mask is None else padding_mask[:, here]
        q, x, chunk = phi_q[:, :, here], exponents[:, :, here], values[:, :, here]
        fall = (own.unsqueeze(-1) - own.unsqueeze(-2)).clamp(min=0)
        weights = (q @ torch.exp(x - own.unsqueeze(-1)).mT) * torch.exp(-fall)
        plain = _with_plain_sum(q, q)[..., -1:] @ _with_ones(x, mask)[..., -1:].mT
        queries = _with_plain_sum(q * torch.exp(before - own).unsqueeze(-1), q)
        outs.append((weights + plain).tril() @ chunk + queries @ total)
        keys = _with_ones(torch.exp(x - end.unsqueeze(-1)), mask)
        total = _rescaled(total, before - end) + keys.mT @ chunk
    return torch.cat(outs, 2), total
