"""Whether a checkpoint is read with the dictionary it was trained with."""

import hashlib
from typing import Any

from ..errors import UserError


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
        UserError: when the fingerprints differ.
    """
    if getattr(cfg, "dictionary_sha256", None) not in (None, fingerprint(dictionary)):
        raise UserError(
            f"the dictionary of {len(dictionary):,} entries is not the one the model was trained with: other "
            "entries or another order; give the data folder of the training"
        )
