"""Configuration of the Long Range Arena encoders."""

from dataclasses import dataclass
from typing import Optional

from ..config import EncoderConfig, _option


@dataclass
class LRAConfig(EncoderConfig):
    """A pre-norm encoder, a pooled vector and a classifier; fields of None are filled in from the data."""

    max_positions: Optional[int] = _option(
        None, "longest sequence; default: the longest in the data, rounded up to a power of two"
    )
    vocabulary_size: Optional[int] = _option(
        None, "rows of the input table; default: the dictionary without <s>, or 256 for pixels"
    )
    embedding_std: Optional[float] = _option(
        None, "standard deviation with which the input and position tables start; default D^(-1/2)"
    )
    embedding_dropout: Optional[float] = _option(None, "dropout after the embedding; default: --dropout")
    pixel_input: str = _option(
        "embedding", "pixels as rows of a table (embedding) or through a linear map of their value (linear)"
    )
    pixel_mean: float = _option(127.5, "grey value that the linear map takes as 0")
    pixel_std: float = _option(127.5, "grey values that it takes as 1")
    mask_zero_pixels: bool = _option(
        False,
        "leave black pixels out of the sequence, as Nystromformer's and Skyformer's pipeline does; each of "
        "the others keeps the position of its place in the image",
    )
    pooling: str = _option(
        "mean",
        "vector of a sequence: mean (over real positions), padded-mean (their sum over --max-positions), "
        "cls (of an extra first position) or last (of the last real position)",
    )
    classifier_dim: Optional[int] = _option(
        None, "inner width of the classifier, 0 for none; default: none for one sequence, D for a pair"
    )
    transnormer_parts: str = _option(
        "paper",
        "inside diag and norm attention: the paper's parts, or those of the authors' code for this "
        "benchmark (state-space): rotary angles fixed and without the reflection, batch norm in norm "
        "attention, a gated RMSNorm in diag attention with relu",
    )
