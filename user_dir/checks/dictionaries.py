"""Whether a checkpoint is read with the dictionary it was trained with."""

import hashlib
from collections.abc import Mapping
from typing import Any

from ..errors import UserError

LABELS = "label_dictionary_sha256"


def fingerprint(dictionary: Any) -> str:
    """A sha256 over the entries in their order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()


def note_dictionary(cfg: Any, task: Any) -> None:
    """Write the dictionary's fingerprint into the configuration that a trainer's checkpoints will hold.

    (Building the model is too early: fairseq gives it a copy of the configuration.) Only models whose
    configuration has the field `dictionary_sha256` are concerned.
    """
    if getattr(cfg.model, "dictionary_sha256", "") is None:
        cfg.model.dictionary_sha256 = fingerprint(task.source_dictionary)


def check_dictionary(cfg: Any, dictionary: Any) -> None:
    """Compare `dictionary` with the fingerprint in a model's configuration, if there is one.

    The same words in another order give other indices, so a model would silently read nonsense.

    Raises:
        UserError: when the fingerprints differ, or the task has no `dictionary`.
    """
    expected = getattr(cfg, "dictionary_sha256", None)
    if expected is None:
        return
    if dictionary is None:
        raise UserError(
            "the model was trained with a dictionary, but the task has none; give the --task of the "
            "training, or another checkpoint"
        )
    if expected != fingerprint(dictionary):
        raise UserError(
            f"the dictionary of {len(dictionary):,} entries is not the one the model was trained with: other "
            "entries or another order; give the data folder of the training"
        )


def label_fingerprint(task: Any) -> dict[str, str]:
    """The fingerprint of a task's labels, as a checkpoint keeps it; empty without a dictionary of labels."""
    labels = getattr(task, "label_dictionary", None)
    if labels is None or labels is task.source_dictionary:  # the labels are numbers
        return {}
    return {LABELS: fingerprint(labels)}


def check_labels(path: str, extra_state: Mapping[str, Any] | None, task: Any) -> None:
    """UserError if the labels of a checkpoint are not those of the task, or in another order.

    A classification head would give each class the name of another. Older checkpoints keep no fingerprint.
    """
    saved, given = ((of or {}).get(LABELS) for of in (extra_state, label_fingerprint(task)))
    if None not in (saved, given) and saved != given:
        raise UserError(
            f"the labels in label/dict.txt are not those that {path} was trained with: other labels or "
            "another order; give the data folder of the training"
        )
