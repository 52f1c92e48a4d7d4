"""Retention (Sun et al. 2023, RetNet): linear attention that forgets at a constant rate per head."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype
from causal_linear_attention.decoding import decodes
from causal_linear_attention.recomputing import recomputed

from ..errors import UserError
from ..modules.linear_maps import JoinsMaps
from ..modules.norms import BACKENDS_WITH_KERNELS, over_root
from ..modules.rotary import rotate_pairs, turns_by
from .decaying import DecayingAttention, joined_heads
from .parts.limits import check_count
from .registry import register_attention


@dataclass
class RetentionOptions:
    """Options of "retention"."""

    value_dim: Optional[int] = field(
        default=None, metadata={"help": "width of values and gates; default: twice that of the model"}
    )

    flag = "retention"

    def __post_init__(self) -> None:
        if self.value_dim is not None:
            check_count(f"--{self.flag}-value-dim", self.value_dim)


class GatedRetention(JoinsMaps, DecayingAttention):
    """`W_o (silu(W_g x) * norm(o))`, a norm per head; no biases. What `retention` and `gated` share.

    The parameters have torchscale's names and begin as there.
    """

    maps = ("q_proj", "k_proj", "v_proj", "g_proj")

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        value_dim = self.options.value_dim or 2 * embed_dim
        if value_dim % num_heads:
            raise UserError(
                f"--{self.options.flag}-value-dim is {value_dim}; it must be a multiple of the {num_heads} "
                "attention heads"
            )
        for name, width in zip(self.maps, (embed_dim, embed_dim, value_dim, value_dim), strict=True):
            self.add_module(name, nn.Linear(embed_dim, width, bias=False))
            nn.init.xavier_uniform_(self.get_submodule(name).weight, gain=2**-2.5)
        self.out_proj = nn.Linear(value_dim, embed_dim, bias=False)
        nn.init.xavier_uniform_(self.out_proj.weight)
        self.value_head_dim = value_dim // num_heads
        self.join_maps()

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `DecayingAttention.project`."""
        q, k, v, gate = self.separate_maps(x, self.backend in BACKENDS_WITH_KERNELS)
        return self.heads(q), self.heads(k), self.heads(v), gate

    def finish(self, out: Tensor, gate: Tensor, at: Any) -> Tensor:
        """See `DecayingAttention.finish`; in training computed again for the gradients, to keep less."""
        return recomputed(self._gated, out, gate, at, always=True)

    def _gated(self, out: Tensor, gate: Tensor, at: Any) -> Tensor:
        return F.silu(gate) * joined_heads(self.normed(out, at)).to(gate.dtype)

    def normed(self, out: Tensor, at: Any) -> Tensor:
        """The product `(B, H, N, e)`, normalised per head; `at` as in `features`."""
        raise NotImplementedError


class _At(NamedTuple):
    """Of positions: `turns_by` of their angles, for queries and for keys, and epsilon, `([B,] H, N, 1)`.

    root is what `over_root` takes of epsilon.
    """

    turns: Tensor
    scaled_turns: Tensor
    floor: Tensor
    root: Tensor


@register_attention("retention")
class RetentionAttention(GatedRetention):
    """`rms(q_t sum_s c^(t - s) k_s^T v_s / sqrt(sum_s c^(t - s)))`, `c = 1 - 2^(-5 - h)` in head h.

    RetNet, eq. 5 to 8, as torchscale computes it: q and k are turned in pairs of channels by angles
    `t 10000^(-j / (d/2 - 1))` and k is divided by sqrt(d); the norm has no weight. It is in torchscale's
    recurrent form; the parallel one also divides rows by their sums, which the norm undoes up to its epsilon.
    """

    Options = RetentionOptions
    constants = ("rates", "angles")
    eps = 1e-6

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        if self.head_dim % 2:
            raise UserError(
                f"retention turns pairs of channels, but {num_heads} heads of a width of {embed_dim} have "
                f"{self.head_dim} channels each; choose a number of heads that gives them an even width"
            )
        self.rates, self.angles = decay_rates(num_heads), rotary_angles(self.head_dim)

    def at(self, positions: Tensor, x: Tensor) -> _At:
        """See `DecayingAttention.at`; computed in float64."""
        wide, rates = accumulation_dtype(x.dtype), self.rates[:, None]
        each = positions if positions.dim() == 1 else positions.unsqueeze(1)
        turns = turns_by(each.unsqueeze(-1) * self.angles).to(wide)
        total = torch.expm1((each + 1) * rates) / torch.expm1(rates)
        floor = (self.eps * total).to(wide).unsqueeze(-1)
        return _At(turns, turns * self.head_dim**-0.5, floor, (floor * self.value_head_dim).sqrt())

    def features(self, q: Tensor, k: Tensor, at: _At) -> tuple[Tensor, Tensor]:
        """See `DecayingAttention.features`; computed in float32 at least."""
        q, k = (
            rotate_pairs(x.to(by.dtype), by).to(x.dtype) for x, by in ((q, at.turns), (k, at.scaled_turns))
        )
        return q, k

    def log_decay(self, x: Tensor) -> Tensor:
        """See `DecayingAttention.log_decay`."""
        return self.rates.to(accumulation_dtype(x.dtype))

    def normed(self, out: Tensor, at: _At) -> Tensor:
        """See `GatedRetention.normed`; the root of the decays' sum is a factor of epsilon."""
        if out.is_cpu and decodes(out):
            return over_root(out, at.root)
        wide = out.to(accumulation_dtype(out.dtype))
        return wide * (wide.square().mean(-1, keepdim=True) + at.floor).rsqrt()


def decay_rates(heads: int) -> Tensor:
    """`log(1 - 2^(-5 - h))` of the heads h, `(heads,)`, float64."""
    return torch.tensor(
        [math.log1p(-(2.0 ** (-5 - h))) for h in range(heads)], dtype=torch.float64, device="cpu"
    )


def rotary_angles(head_dim: int) -> Tensor:
    """`10000^(-j / (d/2 - 1))` of the pairs j of channels, `(d // 2,)`, float64."""
    return 10000.0 ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64, device="cpu")
