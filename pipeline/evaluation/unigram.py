"""What token frequencies alone score on a corpus: the baseline of every language model and encoder."""

import math

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from pipeline.data.prepared import PreparedData


def unigram_bits(data: PreparedData, split: str) -> float:
    """Bits per token of `split` under the frequencies of the train split, one added to each count."""
    dictionary = Dictionary.load(str(data.dictionary))
    train, other = (_counts(data, name, dictionary) for name in ("train", split))
    bits = -np.log2((train + 1) / (train + 1).sum())
    return float((other * bits).sum() / other.sum()) if other.sum() else math.nan


def _counts(data: PreparedData, split: str, dictionary: Dictionary) -> np.ndarray:
    """How often each token occurs, the end of a line included."""
    rows = load_indexed_dataset(str(data.folder / split), dictionary)
    counts = np.zeros(len(dictionary), dtype=np.int64)
    for i in range(len(rows)):
        counts += np.bincount(rows[i].numpy(), minlength=len(dictionary))
    return counts
