"""Whether a checkpoint is read with the dictionary it was trained with."""

import hashlib
from typing import Any

from fairseq.trainer import Trainer
from torch import Tensor, nn

from ..errors import UserError
from ..replacing import replaces


def fingerprint(dictionary: Any) -> str:
    """A sha256 over the entries in their order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()


def keep_fingerprints() -> None:
    """Training notes the dictionary's fingerprint in the configuration that its checkpoints hold.

    (Building the model is too early: fairseq gives it a copy of the configuration.) Only models whose
    configuration has the field `dictionary_sha256` are concerned. A task of images notes their shape, too.
    Applied twice it changes nothing.
    """

    @replaces(Trainer, "__init__")
    def make_trainer(init, self, cfg, task, *args, **kwargs):
        if getattr(cfg.model, "dictionary_sha256", "") is None:
            cfg.model.dictionary_sha256 = fingerprint(task.source_dictionary)
        if hasattr(task, "note_shape"):
            task.note_shape(cfg.task)
        init(self, cfg, task, *args, **kwargs)


def check_dictionary(cfg: Any, dictionary: Any) -> None:
    """Compare `dictionary` with the fingerprint in a model's configuration, if there is one.

    The same words in another order give other indices, so a model would read nonsense without a word.

    Raises:
        UserError: when the fingerprints differ.
    """
    if getattr(cfg, "dictionary_sha256", None) not in (None, fingerprint(dictionary)):
        raise UserError(
            f"the dictionary of {len(dictionary):,} entries is not the one the model was trained with: other "
            "entries or another order; give the data folder of the training"
        )


def check_tokens(tokens: Tensor) -> None:
    """UserError for what is no tensor of whole numbers of shape `(B, N)`."""
    if not isinstance(tokens, Tensor):
        raise UserError(f"the tokens are a {type(tokens).__name__}; expected a tensor (batch, length)")
    if tokens.dim() != 2 or tokens.is_floating_point():
        raise UserError(
            f"the tokens have dtype {tokens.dtype} and shape {tuple(tokens.shape)}; expected whole numbers "
            "(batch, length)"
        )


def embed(table: nn.Module, tokens: Tensor) -> Tensor:
    """Indices `(B, N)` to `(B, N, D)`.

    Raises:
        UserError: on a CPU, for indices outside the table (a GPU would have to be waited for).
    """
    try:
        return table(tokens)
    except IndexError:
        raise UserError(
            f"the tokens go from {int(tokens.min())} to {int(tokens.max())}, outside the dictionary of the "
            "model; were they made with another dictionary?"
        ) from None


def check_size(state_dict: dict[str, Tensor], key: str, dictionary: Any) -> None:
    """UserError where the embedding `key` of a checkpoint has another number of rows than `dictionary`."""
    if key in state_dict and len(state_dict[key]) != len(dictionary):
        raise UserError(
            f"the dictionary has {len(dictionary):,} entries, but the checkpoint was trained with "
            f"{len(state_dict[key]):,}; give the data folder of the training"
        )
