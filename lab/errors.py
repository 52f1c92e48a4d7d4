"""Users' mistakes, and known ways in which a run fails because of its input, each as a one-line message."""

import pickle
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from conventions import OUT_OF_SPACE, Diverged, UserError, sentence_of

__all__ = [
    "MALFORMED",
    "Diverged",
    "UserError",
    "check_known",
    "explain",
    "nearest",
    "suggestion",
    "unexpected",
]

MALFORMED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Exceptions of reading a record that was edited, or is of other origin."""

DAMAGED = (
    "the checkpoint is damaged or not a fairseq checkpoint; nothing in it was run; "
    "copy it again, or name another one"
)
PEER_ENDED = "another process of this training has ended; its own message or log says why"

# Texts of exceptions that fairseq and torch raise, and their meaning.
MEANINGS = {
    "Error(s) in loading state_dict": (
        "the checkpoint does not fit the model: it was trained with another architecture, size or "
        "dictionary; give the settings it was trained with"
    ),
    "PytorchStreamReader failed": DAMAGED,
    "Weights only load failed": DAMAGED,
    "Invalid magic number": DAMAGED,
    "Neither args nor cfg exist": DAMAGED,
    "enforce fail at inline_container": "a checkpoint could not be written; is the disk full?",
    "Dataset not found": (
        "the data folder has no such split; check --train-subset, --valid-subset, --gen-subset, or prepare "
        "it with a script of data-prep/"
    ),
    "embed_dim must be divisible by num_heads": (
        "the number of attention heads does not divide the width; change "
        "--decoder-attention-heads or --decoder-embed-dim"
    ),
    "should not exceed max_tokens": (
        "--max-tokens is less than the length of a sample, --tokens-per-sample; raise it"
    ),
    "since max_positions": (
        "--tokens-per-sample is more than the positions of the model (--max-target-positions, of an "
        "encoder --max-positions)"
    ),
    "Minimum loss scale reached": (
        "the loss has diverged in half precision; lower --lr or train with --bf16"
    ),
    "out of memory": (
        "the GPU's memory is full; lower --batch-size and raise --update-freq by the same factor"
    ),
    "can't allocate memory": (
        "the memory is full; lower --batch-size and raise --update-freq by the same factor"
    ),
    "EADDRINUSE": "the port of --master (MASTER_PORT) is taken; name another one",
    "gloo/transport": PEER_ENDED,
    "remote process exited": PEER_ENDED,
}


def suggestion(word: object, known: Iterable[str], closeness: float = 0.6) -> str:
    """`; did you mean ...?`, or "" if none of the `known` words is close enough."""
    close = get_close_matches(str(word), list(known), n=1, cutoff=closeness)
    return f"; did you mean {close[0]}?" if close else ""


def nearest(word: Any, known: Collection[str]) -> str:
    """`; did you mean ...?`, or the known names."""
    return suggestion(word, known, closeness=0.5) or f"; choose from {', '.join(known)}"


def check_known(word: Any, known: Collection[str], said: str) -> None:
    """UserError if `word` is not `known`: `said`, and the nearest known name."""
    if word not in known:
        raise UserError(f"{said}{nearest(word, known)}")


def explain(error: BaseException) -> str | None:
    """The sentence for a failure that the user can mend; None for anything else."""
    if sentence := sentence_of(error):
        return sentence
    if isinstance(error, OSError) and error.errno in OUT_OF_SPACE:
        return f"the disk is full while writing {error.filename or 'a file'}; free some space"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, pickle.UnpicklingError | EOFError):
        return DAMAGED
    if isinstance(error, MemoryError):  # whose text may be empty
        return MEANINGS["can't allocate memory"]
    text = str(error)
    return next((meaning for sign, meaning in MEANINGS.items() if sign in text), None)


def unexpected(error: BaseException) -> str:
    """The sentence for a failure that `explain` does not know."""
    return f"unexpected {type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
