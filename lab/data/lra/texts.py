"""Text (IMDb reviews, Maas et al. 2011) and Retrieval (pairs of papers, ACL Anthology), from their files.

Reviews are aclImdb/{train,test}/{neg,pos}/NUMBER_RATING.txt. Pairs are new_aan_pairs.{train,eval,test}.tsv,
five columns without header or quoting: label as a float, two ids, two texts. A reader that knows quotes would
merge rows. Their texts become bytes (Skyformer's pipeline) or characters (the state-space one).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from lab.data.lra.tasks import TaskFiles
from lab.data.lra.writing import (
    END,
    FIRST,
    MOST_ENTRIES,
    TOKEN_TYPE,
    UNKNOWN,
    SplitRecord,
    Symbols,
    count_tokens,
    replace_tokens,
    write_dictionary,
    write_examples,
)
from lab.data.published import CORPORA
from lab.errors import UserError

Reviews = list[tuple[int, str, bytes]]
"""Label, file name and text."""
PUBLISHED_REVIEWS = CORPORA["imdb"].entry["reviews_sha256"]
PAIR_FILES = {
    "new_aan_pairs.train.tsv": "train",
    "new_aan_pairs.eval.tsv": "valid",
    "new_aan_pairs.test.tsv": "test",
}
COLUMNS = 5
PAIR_LABELS = {b"0.0": 0, b"1.0": 1, b"0": 0, b"1": 1}
CODE_POINTS = 0x110000


class ByteSymbols:
    """Byte b is the symbol `b`, index FIRST + b; the first `length` bytes are kept."""

    def __init__(self, length: int) -> None:
        self.length = length

    def encode(self, text: bytes) -> np.ndarray:
        """The row of a text."""
        return np.frombuffer(text[: self.length], dtype=np.uint8).astype(np.int64) + FIRST

    def finish(self, folder: Path, stems: Sequence[str], counted: Sequence[str]) -> int:
        """All 256 bytes, used or not."""
        counts = count_tokens(folder, counted)[FIRST : FIRST + 256]
        return write_dictionary(folder, [str(byte) for byte in range(256)], counts.tolist())


class CharacterSymbols:
    """Characters, the first `length` - 1 kept and `</s>` added; rare ones are <unk>.

    Characters get provisional indices in the order they are met; `finish` keeps those that occur `least`
    times in the counted files, the most frequent first, and renumbers the written rows.
    """

    def __init__(self, length: int, least: int) -> None:
        self.length = length
        self.least = least
        self.indices = np.zeros(CODE_POINTS, dtype=np.int64)
        self.characters: list[int] = []

    def encode(self, text: bytes) -> np.ndarray:
        """The row of a text, in provisional indices."""
        points = np.frombuffer(text.decode()[: self.length - 1].encode("utf-32-le"), dtype=np.uint32)
        for point in np.unique(points[self.indices[points] == 0]).tolist():
            self.indices[point] = FIRST + len(self.characters)
            self.characters.append(point)
        return np.append(self.indices[points], END)

    def finish(self, folder: Path, stems: Sequence[str], counted: Sequence[str]) -> int:
        """The characters that are frequent enough; all `stems` are rewritten in final indices."""
        counts = count_tokens(folder, counted)[FIRST : FIRST + len(self.characters)].tolist()
        pairs = zip(counts, self.characters, strict=True)
        kept = sorted((-count, point) for count, point in pairs if count >= self.least)
        table = np.full(MOST_ENTRIES, UNKNOWN, dtype=TOKEN_TYPE)
        table[:FIRST] = range(FIRST)
        for number, (_, point) in enumerate(kept):
            table[self.indices[point]] = FIRST + number
        replace_tokens(folder, stems, table)
        names = [f"U+{point:04X}" for _, point in kept]
        return write_dictionary(folder, names, [-count for count, _ in kept])


def write_text(
    source: TaskFiles, folder: Path, symbols: Symbols, valid_fraction: float, seed: int
) -> dict[str, SplitRecord]:
    """Write the splits; `valid_fraction` of each class of train, drawn by `seed`, becomes valid.

    The unlabelled reviews are left out. UserError for a folder that is missing, an empty review, and a
    fraction that leaves train or valid without reviews.
    """
    reviews = read_reviews(source)
    source.recognised = digest_of(reviews) == PUBLISHED_REVIEWS
    held_out = draw_held_out(reviews["train"], valid_fraction, seed)
    if valid_fraction and not 0 < held_out.sum() < len(held_out):
        raise UserError(
            f"--valid-fraction {valid_fraction} of {len(held_out):,} reviews makes {held_out.sum():,} valid; "
            "some must be, others not (0: no valid split)"
        )
    splits = {
        "train": list(compress(reviews["train"], ~held_out)),
        "valid": list(compress(reviews["train"], held_out)),
        "test": reviews["test"],
    }
    return {
        split: write_examples(folder, split, source.task.inputs, _encoded(chosen, source, symbols), "reviews")
        for split, chosen in splits.items()
        if chosen
    }


def read_reviews(source: TaskFiles) -> dict[str, Reviews]:
    """The reviews of train and test, negative ones first, in the order of their numbers."""
    reviews: dict[str, Reviews] = {"train": [], "test": []}
    for path, content in source.files(is_review):
        split, label, name = path.parts[-3:]
        reviews[split].append((("neg", "pos").index(label), name, content.read()))
    for split, found in reviews.items():
        for label, folder in enumerate(("neg", "pos")):
            if not any(review[0] == label for review in found):
                raise source.missing(f"reviews in {split}/{folder}")
        found.sort(key=lambda review: (review[0], int(review[1].split("_")[0]), review[1]))
    return reviews


def digest_of(reviews: Mapping[str, Reviews]) -> str:
    """sha256 over the lines `SHA256  SPLIT/LABEL/NAME` of all reviews, sorted; any archive gives the same."""
    lines = sorted(
        f"{hashlib.sha256(text).hexdigest()}  {split}/{('neg', 'pos')[label]}/{name}\n"
        for split, found in reviews.items()
        for label, name, text in found
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def is_review(path: PurePosixPath) -> bool:
    """Whether this is the path of a labelled review."""
    return (
        path.suffix == ".txt"
        and len(path.parts) >= 3
        and path.parts[-3] in ("train", "test")
        and path.parts[-2] in ("neg", "pos")
        and path.name.split("_")[0].isdigit()
    )


def draw_held_out(reviews: Reviews, fraction: float, seed: int) -> np.ndarray:
    """Which reviews are held out, boolean of shape (reviews,): the same fraction of each class."""
    labels = np.array([label for label, _, _ in reviews])
    held_out = np.zeros(len(labels), dtype=bool)
    random = np.random.default_rng(seed)
    for label in (0, 1):
        members = np.flatnonzero(labels == label)
        held_out[random.permutation(members)[: round(len(members) * fraction)]] = True
    return held_out


def _encoded(reviews: Reviews, source: TaskFiles, symbols: Symbols) -> Iterator[tuple[int, np.ndarray]]:
    for label, name, text in reviews:
        if not text:
            raise UserError(f"{source.path}: the review {name} is empty; get the files again")
        try:
            row = symbols.encode(text)
        except UnicodeDecodeError:
            raise UserError(
                f"{source.path}: the review {name} is not UTF-8 text; get the files again"
            ) from None
        yield label, row


def read_pairs(name: str, content: BinaryIO) -> Iterator[tuple[int, bytes, bytes]]:
    """Label and texts of each row of a file; UserError names the file and the line of a bad one."""
    for number, line in enumerate(content, 1):
        cells = line.rstrip(b"\r\n").split(b"\t")
        if len(cells) != COLUMNS:
            raise UserError(
                f"{name}, line {number}, has {len(cells)} columns instead of {COLUMNS} (label, id, id, text, "
                "text); get the file again"
            )
        label, _, _, *texts = cells
        if label not in PAIR_LABELS:
            shown = label[:20].decode(errors="replace")
            raise UserError(f"{name}, line {number}, has the label {shown!r} instead of 0.0 or 1.0")
        for text in texts:
            if not text.strip():
                raise UserError(f"{name}, line {number}, has an empty text; get the file again")
            try:
                text.decode()
            except UnicodeDecodeError:
                raise UserError(f"{name}, line {number}, is not UTF-8 text; get the file again") from None
        yield PAIR_LABELS[label], *texts
