"""TNN (Qin et al. 2023): a gated Toeplitz unit, which mixes by relative position alone. O(N log N D)."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype

from ..errors import UserError
from ..modules import RMSNorm
from .base import Attention
from .parts.limits import check_count
from .parts.new_tokens import NewTokens
from .parts.state import State, write_to_cache
from .registry import register_attention


@dataclass
class TnnOptions:
    """Options of "tnn"."""

    expansion: int = field(default=3, metadata={"help": "width of values and gates, in widths of the model"})
    decay: float = field(
        default=0.99,
        metadata={"help": "factor by which a coefficient shrinks with each position of distance"},
    )
    network_dim: int = field(
        default=64, metadata={"help": "width of the network that makes coefficients of distances"}
    )
    network_layers: int = field(default=6, metadata={"help": "layers of that network between its two ends"})

    def __post_init__(self) -> None:
        check_count("--tnn-expansion", self.expansion)
        check_count("--tnn-network-dim", self.network_dim)
        check_count("--tnn-network-layers", self.network_layers)
        if not 0 < self.decay <= 1:
            raise UserError(f"--tnn-decay is {self.decay}; it must be a number above 0, at most 1")


class DistanceNetwork(nn.Module):
    """Coefficients of distances: a linear map, then layers of RMSNorm, ReLU and a linear map each.

    The raw distance is its input, so it runs in float32 at least, whatever type its weights have.

    Args:
        dim: width of the layers.
        channels: coefficients a distance, E.
        layers: how many, without the first map and the layer that gives the coefficients.
    """

    def __init__(self, dim: int, channels: int, layers: int) -> None:
        super().__init__()
        self.pos_proj = nn.Linear(1, dim)
        self.layers = nn.ModuleList(self._layer(dim, dim) for _ in range(layers))
        self.out = self._layer(dim, channels)

    @staticmethod
    def _layer(dim: int, out: int) -> nn.Sequential:
        return nn.Sequential(RMSNorm(), nn.ReLU(), nn.Linear(dim, out))

    def forward(self, distances: Tensor) -> Tensor:
        """Integers `(n,)` to `(n, E)`."""
        x = distances.to(accumulation_dtype(self.pos_proj.weight.dtype)).unsqueeze(-1)
        x = _wide_linear(x, self.pos_proj)
        for norm, activation, linear in (*self.layers, self.out):
            x = _wide_linear(activation(norm(x)), linear)
        return x


class Toeplitz(nn.Module):
    """`T(v)_i = sum_j c(i - j) decay^|i - j| v_j`, channel by channel; j up to i when causal.

    Args:
        channels: E.
        causal: earlier positions and the own only.
        options: a `TnnOptions`.
    """

    def __init__(self, channels: int, causal: bool, options: TnnOptions) -> None:
        super().__init__()
        self.causal = causal
        self.rpe = DistanceNetwork(options.network_dim, channels, options.network_layers)
        # Fixed, but a parameter in the authors' checkpoints and counts.
        self.gamma = nn.Parameter(torch.full((1, 1, channels), options.decay), requires_grad=False)

    def _apply(self, fn, recurse=True):
        before = self.gamma.data
        super()._apply(fn, recurse)
        if self.gamma.element_size() < 4:  # half precision would round 0.999 to 1
            self.gamma.data = before.to(self.gamma.device)
        return self

    def coefficients(self, distances: Tensor) -> Tensor:
        """`c(t) decay^|t|` of integers t, `(n,)` to `(n, E)`, float32 at least."""
        c = self.rpe(distances)
        return c * self.gamma.flatten().to(c.dtype) ** distances.abs().unsqueeze(-1)

    def forward(self, v: Tensor) -> Tensor:
        """`(B, N, E)`, float32 at least, by the Fourier transform."""
        if len(v) == 0:  # an empty batch cannot be transformed
            return v
        length = v.shape[1]
        size = 1 << (2 * length - 2).bit_length()  # at least 2 N - 1, so that nothing wraps around
        places = torch.arange(length, device=v.device)
        kernel = F.pad(self.coefficients(places), (0, 0, 0, size - length))
        if not self.causal and length > 1:  # negative distances are at the end of the circle
            kernel = torch.cat([kernel[: size - length + 1], self.coefficients(places[1:] - length)])
        spectrum = torch.fft.rfft(v, n=size, dim=1) * torch.fft.rfft(kernel, dim=0)
        return torch.fft.irfft(spectrum, n=size, dim=1)[:, :length]


@register_attention("tnn")
class TnnAttention(Attention):
    """`W_o (silu(W_u x) * T(silu(W_v x)))`, T a Toeplitz matrix for each of the 3 D channels (TNN, eq. 10).

    The coefficients come from a small network of the distance and decay with it. Heads play no part, and
    there is no dropout. At padding the values are zero. Decoding keeps all values: O(length) per token.
    """

    Options = TnnOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        channels = self.options.expansion * embed_dim
        self.u_proj = nn.Linear(embed_dim, channels)
        self.v_proj = nn.Linear(embed_dim, channels)
        self.o = nn.Linear(channels, embed_dim)
        self.toep = Toeplitz(channels, self.causal, self.options)

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        if len(x) == 0:
            return x
        values = self._values(x, padding_mask)
        with torch.autocast(x.device.type, enabled=False):
            mixed = self.toep(values)
        return self._gated(x, mixed)

    def mix_next(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """See `Attention.mix_next`. Rows may be at different positions; padding is overwritten."""
        values = self._values(x, new.padding_mask)
        with torch.autocast(x.device.type, enabled=False):
            mixed, state = self._mixed_next(values, new, state)
        return self._gated(x, mixed), state

    def _mixed_next(self, values: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        state = self._with_room(values, state)
        length, places = state["length"] + new.count, new.positions
        index = places.unsqueeze(-1).expand_as(values)
        cache = write_to_cache(state["v"], 1, index, values)
        seen = cache[:, :length]
        if new.count == 1:
            distances = (places - torch.arange(length, device=places.device)).clamp(min=0)
            mixed = (state["coefficients"][0][distances] * seen).sum(1, keepdim=True)
        else:
            mixed = self.toep(seen).gather(1, index)
        return mixed, {**state, "v": cache, "length": length}

    def _with_room(self, new: Tensor, state: State | None) -> State:
        """The state with room for `new: (B, T, E)`: values by position, no row beyond `length`.

        The coefficients, of as many distances, are in a tuple: they have no batch to be reordered.
        """
        batch, count, channels = new.shape
        if state is None:
            state = {"v": new.new_zeros(batch, 0, channels), "length": 0}
        cache, needed = state["v"], state["length"] + count
        if needed <= cache.shape[1]:
            return state
        room = max(needed, 2 * cache.shape[1])
        distances = torch.arange(room, device=new.device)
        return {
            **state,
            "v": F.pad(cache, (0, 0, 0, room - cache.shape[1])),
            "coefficients": (self.toep.coefficients(distances),),
        }

    def _values(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """`(B, N, E)`, float32 for half precision, in which the Fourier transform would lose too much."""
        values = F.silu(self.v_proj(x.transpose(0, 1)))
        values = values.to(accumulation_dtype(values.dtype))
        return values if padding_mask is None else values.masked_fill(padding_mask.unsqueeze(-1), 0.0)

    def _gated(self, x: Tensor, mixed: Tensor) -> Tensor:
        return self.o(F.silu(self.u_proj(x)) * mixed.to(x.dtype).transpose(0, 1))


def _wide_linear(x: Tensor, linear: nn.Linear) -> Tensor:
    return F.linear(x, linear.weight.to(x.dtype), linear.bias.to(x.dtype))
