"""One layer: an attention and a position-wise network, or a gated unit that is both."""

from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from causal_linear_attention.decoding import few_rows, linear_step

from ..attention.base import Attention
from ..attention.parts.new_tokens import NewTokens
from ..modules import GLU, build_norm
from ..modules.dropout import drops
from ..modules.linear_maps import has_hooks, is_plain
from ..modules.residual import add_and_norm, add_branch


class TransformerLayer(nn.Module):
    """`x + f(norm(x))` for f the attention, then the feed-forward network; post-norm: `norm(x + f(x))`.

    Its parts carry the names of fairseq's decoder layer, and those of the authors' for a GLU, so that
    their checkpoints load.

    Args:
        attention: a module with the call of `SelfAttention`.
        embed_dim: width D.
        feed_forward: a `GLU` or `FeedForward`.
        norm: name of the norm, see `build_norm`.
        dropout: on each residual branch.
        pre_norm: norms before the parts, not after them.

    Attributes:
        kernels: whether kernels add the branches where they run; see `choose_kernels`.
    """

    kernels = True

    def __init__(
        self,
        attention: nn.Module,
        embed_dim: int,
        feed_forward: nn.Module,
        norm: str,
        dropout: float,
        pre_norm: bool = True,
    ) -> None:
        super().__init__()
        self.self_attn = attention
        self.self_attn_layer_norm = build_norm(norm, embed_dim)
        if isinstance(feed_forward, GLU):
            self.glu = feed_forward
        else:
            self.fc1, self.fc2 = feed_forward.fc1, feed_forward.fc2
            self.activation, self.inner_dropout = feed_forward.activation, feed_forward.dropout
        self.final_layer_norm = build_norm(norm, embed_dim)
        self.dropout = FairseqDropout(dropout)
        self.pre_norm = pre_norm

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        new_tokens: NewTokens | None = None,
    ) -> Tensor:
        """`x: (N, B, D)`, `key_padding_mask: (B, N)` True at padding; returns `(N, B, D)`.

        The layers of a decoding step share `new_tokens`.
        """
        if self.pre_norm and few_rows(x) and not drops(self.dropout):
            return self._of_few_rows(x, key_padding_mask, incremental_state, new_tokens)
        y = self.self_attn_layer_norm(x) if self.pre_norm else x
        y = self._attention(y, key_padding_mask, incremental_state, new_tokens)
        if self.pre_norm:
            x, y = add_and_norm(x, y, self.dropout, self.final_layer_norm, keep=True)
            return add_branch(x, self._feed_forward(y), self.dropout, self.kernels)
        _, x = add_and_norm(x, y, self.dropout, self.self_attn_layer_norm, keep=False)
        return add_and_norm(x, self._feed_forward(x), self.dropout, self.final_layer_norm, keep=False)[1]

    def _of_few_rows(
        self, x: Tensor, mask: Tensor | None, incremental_state: dict | None, new: NewTokens | None
    ) -> Tensor:
        """`forward`, pre-norm and without dropout, each half by kernels if its parts fit them."""
        out, norm, attention = None, self.self_attn_layer_norm, self.self_attn
        single = len(x) == 1 and new is not None and incremental_state is not None and mask is None
        if single and isinstance(attention, Attention):
            out = attention.residual_step(x, norm, new, incremental_state)
        x = x + self._attention(norm(x), mask, incremental_state, new) if out is None else out
        out, norm = self._feed_forward_step(x), self.final_layer_norm
        return x + self._feed_forward(norm(x)) if out is None else out

    def _feed_forward_step(self, x: Tensor) -> Tensor | None:
        """`x + f(norm(x))` for f the feed-forward network, by the kernels; None if they do not apply."""
        norm = self.final_layer_norm
        if hasattr(self, "glu"):
            fits = type(self.glu) is GLU and not has_hooks(self.glu)
            return self.glu.residual_step(x, norm) if fits else None
        first, second = self.fc1, self.fc2
        if not (self.kernels and is_plain(first) and is_plain(second)) or drops(self.inner_dropout):
            return None
        inner = self.activation(linear_step(norm(x), None, first.weight, first.bias, None))
        return linear_step(inner, None, second.weight, second.bias, x)

    def _attention(
        self, x: Tensor, mask: Tensor | None, incremental_state: dict | None, new: NewTokens | None
    ) -> Tensor:
        given = {"key_padding_mask": mask, "incremental_state": incremental_state, "new_tokens": new}
        return self.self_attn(x, **given)[0]

    def _feed_forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "glu"):
            return self.glu(x)
        return self.fc2(self.inner_dropout(self.activation(self.fc1(x))))


class GatedLayer(nn.Module):
    """`x + f(norm(x))` for a gated unit f, which is attention and feed-forward network in one.

    Args:
        unit: an attention with `replaces_feed_forward`.
        embed_dim: width D.
        norm: name of the norm, see `build_norm`.
    """

    def __init__(self, unit: nn.Module, embed_dim: int, norm: str) -> None:
        super().__init__()
        self.self_attn = unit
        self.self_attn_layer_norm = build_norm(norm, embed_dim)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        own, authors = f"{prefix}self_attn_layer_norm.", f"{prefix}self_attn.norm."
        for key in [key for key in state_dict if key.startswith(authors)]:  # their units hold the norm
            state_dict[own + key.removeprefix(authors)] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        new_tokens: NewTokens | None = None,
    ) -> Tensor:
        """As `TransformerLayer.forward`."""
        y = self.self_attn(
            self.self_attn_layer_norm(x),
            key_padding_mask=key_padding_mask,
            incremental_state=incremental_state,
            new_tokens=new_tokens,
        )[0]
        return x + y
