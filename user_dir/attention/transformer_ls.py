"""Transformer-LS (Zhu et al. 2021): attention to a window and to pooled vectors, in one softmax.

The authors' bidirectional and causal forms are different formulas; they share their name and options.
"""

from dataclasses import dataclass, field
from typing import Optional

from .base import Attention
from .parts.limits import check_count
from .registry import register_attention
from .transformer_ls_causal import CausalLongShortAttention
from .transformer_ls_full import FullLongShortAttention


@dataclass
class TransformerLSOptions:
    """Options of "transformer_ls"; None stands for the paper's setting of the form."""

    window: Optional[int] = field(
        default=None,
        metadata={
            "help": "window w, an even number: a language model sees the last w positions, an encoder its "
            "block of w and half a block on either side; default 64 and 8"
        },
    )
    rank: Optional[int] = field(
        default=None,
        metadata={
            "help": "pooled vectors r a head, in a language model of each chunk, in an encoder of the whole "
            "sequence; default 1 and 32"
        },
    )
    chunk: Optional[int] = field(
        default=None,
        metadata={"help": "positions C that a language model pools at a time (encoders: none); default 32"},
    )

    def __post_init__(self) -> None:
        for name, even in (("window", True), ("rank", False), ("chunk", False)):
            if getattr(self, name) is not None:
                check_count(f"--transformer-ls-{name}", getattr(self, name), even=even)


@register_attention("transformer_ls")
class LongShortAttention(Attention):
    """The name and the options of `CausalLongShortAttention` and `FullLongShortAttention`."""

    Options = TransformerLSOptions

    @classmethod
    def form(cls, causal: bool) -> type[Attention]:
        """See `Attention.form`."""
        return CausalLongShortAttention if causal else FullLongShortAttention
