"""A split as streams of consecutive tokens: a few of equal length side by side, or one for each document."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset
from torch import Tensor

from pipeline.data.documents import TITLE
from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError


@dataclass(frozen=True)
class Streams:
    """Rows that are read side by side, with padding behind the shorter ones.

    `source`, `target`: `(B, L)`, the target of a position being the source of the next.
    """

    source: Tensor
    target: Tensor


def read_rows(data: PreparedData, split: str, dictionary: Dictionary) -> list[Tensor]:
    """The rows of a split, each with its end-of-line."""
    rows = load_indexed_dataset(str(data.folder / split), dictionary)
    return [rows[i].long() for i in range(len(rows))]


def parallel_streams(rows: list[Tensor], count: int, dictionary: Dictionary) -> Streams:
    """The text cut into `count` pieces, equally long but for the last one.

    Raises:
        UserError: when the text has fewer tokens than pieces.
    """
    text = torch.cat(rows)
    length = -(-len(text) // count)
    pieces = list(text.split(length))
    if len(pieces) < count:
        raise UserError(
            f"--streams is {count}, but {len(text):,} tokens make {len(pieces)} streams of {length}; give "
            f"{len(pieces)} or fewer"
        )
    before = [dictionary.eos(), *(int(piece[-1]) for piece in pieces[:-1])]
    return side_by_side(pieces, before, dictionary)


def side_by_side(pieces: list[Tensor], before: list[int], dictionary: Dictionary) -> Streams:
    """`pieces` as rows; `before` holds the token that each one is preceded by."""
    target = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True, padding_value=dictionary.pad())
    source = target.roll(1, dims=1)
    source[:, 0] = torch.tensor(before)
    source[target.eq(dictionary.pad())] = dictionary.pad()
    return Streams(source, target)


def document_streams(
    rows: list[Tensor], count: int, dictionary: Dictionary, subwords: str | None
) -> list[Streams]:
    """WikiText's articles, `count` side by side, those of similar length together.

    `subwords` is fairseq's name of the tokeniser, None for words. Raises UserError without a single title.
    """
    documents = split_documents(rows, dictionary, subwords)
    documents.sort(key=len, reverse=True)
    batches = [documents[start : start + count] for start in range(0, len(documents), count)]
    return [side_by_side(batch, [dictionary.eos()] * len(batch), dictionary) for batch in batches]


def split_documents(rows: list[Tensor], dictionary: Dictionary, subwords: str | None) -> list[Tensor]:
    """The tokens of each document; what precedes the first title belongs to the first."""
    starts = [
        number
        for number, row in enumerate(rows)
        if TITLE.fullmatch(dictionary.string(row, subwords).strip())
        and all(len(rows[n]) == 1 for n in (number - 1, number + 1) if 0 <= n < len(rows))
    ]
    if not starts:
        raise UserError(
            "the split has no document: no line is a title as in WikiText (= Title =), between empty lines; "
            "leave out --reset-at-documents"
        )
    bounds = [0, *starts[1:], len(rows)]
    return [torch.cat(rows[first:last]) for first, last in pairwise(bounds)]
