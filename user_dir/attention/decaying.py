"""What attentions that forget share: a sum that decays, values of their own width, and a gate."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from causal_linear_attention import causal_linear_attention
from causal_linear_attention.chunked import accumulation_dtype
from causal_linear_attention.decoding import linear_step

from ..modules.linear_maps import has_hooks, is_plain
from ..modules.norms import BACKENDS_WITH_KERNELS
from .base import Attention
from .linear import next_sums
from .parts.new_tokens import NewTokens
from .parts.state import State


class DecayingAttention(Attention):
    """`out_proj(finish(o))`, `o_t = q_t S_t`, `S_t = e^(g_t) S_(t-1) + k_t^T v_t`; causal only.

    A subclass computes `project`, `features`, `log_decay` and `finish`, and has an `out_proj`. Time per head
    O(N d e), d being the width of keys and e that of values; the decoding state is S, `(d, e)`. At padding g
    and k are zero, which leaves S as it is. float16 is computed in float32, whose range the sum needs.

    Class attributes:
        constants: the names of float64 tensors that follow the module to a device, but keep their dtype.
    """

    causal_only = True
    constants: tuple[str, ...] = ()
    out_proj: nn.Linear

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`x: (N, B, D)` to queries and keys `(B, H, N, d)`, values `(B, H, N, e)`, gates `(N, B, H e)`."""
        raise NotImplementedError

    def at(self, positions: Tensor, x: Tensor) -> Any:
        """What `features` and `finish` take of integer `positions`, `(N,)` or `(B, N)`; here the positions.

        It is the same in all layers of a model: a decoding step computes it once. x is `(N, B, D)`.
        """
        return positions

    def features(self, q: Tensor, k: Tensor, at: Any) -> tuple[Tensor, Tensor]:
        """What the product takes of queries and keys, for `at` of their positions."""
        raise NotImplementedError

    def log_decay(self, x: Tensor) -> Tensor:
        """g, `(H,)` or `(B, H, N)`, for `x: (N, B, D)`; float32 (float64 for float64)."""
        raise NotImplementedError

    def finish(self, out: Tensor, gate: Tensor, at: Any) -> Tensor:
        """The product `(B, H, N, e)`, normalised and gated, `(N, B, H e)`; `at` as in `features`."""
        raise NotImplementedError

    def inputs(self, x: Tensor, at: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the product takes, q, k and v, and the gates, of `x: (N, B, D)`; see `project`, `features`."""
        q, k, v, gate = self.project(x)
        if q.dtype == torch.float16:
            q, k, v = q.float(), k.float(), v.float()
        return *self.features(q, k, at), v, gate

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        at = self.at(torch.arange(len(x), device=x.device), x)
        q, k, v, gate = self.inputs(x, at)
        out = causal_linear_attention(q, k, v, log_decay=self.log_decay(x), backend=self.backend)
        return self.out_proj(self.finish(out, gate, at).to(x.dtype))

    def mix_next(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """See `Attention.mix_next`; O(d e) per token and head."""
        out, state = self._finished(x, new, state)
        return self.out_proj(out), state

    def residual_step(
        self, x: Tensor, norm: nn.Module, new: NewTokens, incremental_state: dict[str, State]
    ) -> Tensor | None:
        """See `Attention.residual_step`; the kernels compute the output map."""
        own = self.has_methods_of(DecayingAttention, "forward", "mix_next")
        if (
            self.backend not in BACKENDS_WITH_KERNELS
            or has_hooks(self)
            or not is_plain(self.out_proj)
            or not own
        ):
            return None
        out, state = self._finished(norm(x), new, self.get_state(incremental_state))
        self.set_state(incremental_state, {**state, "position": new.end})
        return linear_step(out, None, self.out_proj.weight, self.out_proj.bias, x)

    def _finished(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """`mix_next` without the output map."""
        key = type(self), self.num_heads, self.head_dim, x.dtype
        at = new.shared(key, lambda: self.at(new.positions, x))
        q, k, v, gate = self.inputs(x, at)
        decay = self.log_decay(x)
        if new.padding_mask is not None:
            hidden = new.padding_mask[:, None]
            k = k.masked_fill(hidden.unsqueeze(-1), 0.0)
            decay = (decay[:, None] if decay.dim() == 1 else decay).masked_fill(hidden, 0.0)
        if state is None:
            sizes = (*k.shape[:2], k.shape[3], v.shape[3])
            state = {"sum": k.new_zeros(sizes, dtype=accumulation_dtype(k.dtype))}
        out, total = next_sums(q, k, v, state["sum"], log_decay=decay, backend=self.backend)
        return self.finish(out, gate, at).to(x.dtype), {"sum": total}

    def _apply(self, fn: Callable[[Tensor], Tensor], *args, **kwargs) -> "DecayingAttention":
        super()._apply(fn, *args, **kwargs)
        for name in self.constants:
            constant = getattr(self, name)
            device = fn(torch.empty(0, device=constant.device)).device
            if device.type != "meta":
                setattr(self, name, constant.to(device))
        return self


def joined_heads(x: Tensor) -> Tensor:
    """`(B, H, N, e)` to `(N, B, H e)`."""
    return x.permute(2, 0, 1, 3).flatten(2)
