"""IMDb reviews (Maas et al. 2011), the task Text: aclImdb/{train,test}/{neg,pos}/NUMBER_RATING.txt."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import numpy as np

from pipeline.data.lra.sources import Source
from pipeline.data.lra.symbols import Symbols
from pipeline.data.lra.writing import SplitRecord, TokenSplit
from pipeline.data.preparation import Workplace
from pipeline.data.published import CORPORA
from pipeline.errors import UserError

Reviews = list[tuple[int, str, bytes]]
"""Label, file name and text."""
PUBLISHED_REVIEWS = CORPORA["imdb"].entry["reviews_sha256"]


def write_text(
    source: Source, place: Workplace, symbols: Symbols, valid_fraction: float, seed: int
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
        "train": [review for review, out in zip(reviews["train"], held_out, strict=True) if not out],
        "valid": [review for review, out in zip(reviews["train"], held_out, strict=True) if out],
        "test": reviews["test"],
    }
    return {
        name: _write_split(place, name, chosen, source, symbols) for name, chosen in splits.items() if chosen
    }


def read_reviews(source: Source) -> dict[str, Reviews]:
    """The reviews of train and test, negative ones first, in the order of their numbers."""
    reviews: dict[str, Reviews] = {"train": [], "test": []}
    for path, content in source.files(_is_review):
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


def _is_review(path: PurePosixPath) -> bool:
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


def _write_split(
    place: Workplace, split: str, reviews: Sequence[tuple[int, str, bytes]], source: Source, symbols: Symbols
) -> SplitRecord:
    with TokenSplit(place.folder, split, source.task.inputs) as writer:
        for label, name, text in reviews:
            if not text:
                raise UserError(f"{source.path}: the review {name} is empty; get the files again")
            try:
                writer.add(label, symbols.encode(text))
            except UnicodeDecodeError:
                raise UserError(
                    f"{source.path}: the review {name} is not UTF-8 text; get the files again"
                ) from None
    return writer.record
