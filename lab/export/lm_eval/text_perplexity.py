"""A task of lm-eval with one text as its only document; lm-eval calls `read` and `score`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

END_OF_LINE = "</s>"
"""The token that fairseq adds to every line."""


def document(lines: Iterable[str]) -> tuple[str, int]:
    """The lines as text for the exported tokeniser, and their words.

    Words are separated by white space, and each end of a line counts as one, as in WikiText's counts.
    """
    words = [line.split() for line in lines]
    return "".join(" ".join(line) + END_OF_LINE for line in words), sum(len(line) + 1 for line in words)


def read(text: str, **unused: object) -> dict[str, Any]:
    """The file `text`, of `--metadata`, as a split of one document (`text`, `words`)."""
    from datasets import Dataset  # comes with lm-eval

    with Path(text).open(encoding="utf-8", newline="\n") as lines:
        content, words = document(lines)
    return {"test": Dataset.from_list([{"text": content, "words": words}])}


def score(doc: dict[str, Any], results: list[float]) -> dict[str, tuple[float, int]]:
    """The log-likelihood of the document in nats, and its number of words."""
    [likelihood] = results
    return {"word_perplexity": (likelihood, doc["words"])}
