"""Reformer (Kitaev et al. 2020): attention among tokens that hash to the same bucket.

The authors' form for encoders sees the future through its sorting; language models have a strictly causal
one. They share their name, options and parameters.
"""

from dataclasses import dataclass, field
from typing import Optional

from .base import Attention
from .parts.limits import check_count
from .reformer_causal import CausalReformerAttention
from .reformer_full import FullReformerAttention
from .registry import register_attention


@dataclass
class ReformerOptions:
    """Options of "reformer"."""

    chunk_size: int = field(
        default=64,
        metadata={
            "help": "tokens in a chunk of the sorted sequence; in a language model, how many tokens of its "
            "bucket a token sees"
        },
    )
    rounds: int = field(default=2, metadata={"help": "independent hashings whose results are merged"})
    buckets: Optional[int] = field(
        default=None,
        metadata={
            "help": "buckets of each hashing, an even number; default: the largest power of two up to "
            "twice the chunks of the longest sequence"
        },
    )
    redraw: bool = field(
        default=False,
        metadata={"help": "draw the hashing planes again in each training step and keep the last ones"},
    )

    def __post_init__(self) -> None:
        check_count("--reformer-chunk-size", self.chunk_size)
        check_count("--reformer-rounds", self.rounds)
        if self.buckets is not None:
            check_count("--reformer-buckets", self.buckets, even=True)


@register_attention("reformer")
class ReformerAttention(Attention):
    """The name and the options of `CausalReformerAttention` and `FullReformerAttention`."""

    Options = ReformerOptions

    @classmethod
    def form(cls, causal: bool) -> type[Attention]:
        """See `Attention.form`."""
        return CausalReformerAttention if causal else FullReformerAttention
