"""Whether tokens and a dictionary fit the embeddings of a model."""

from typing import Any

from torch import Tensor, nn

from ..errors import UserError


def check_tokens(tokens: Tensor) -> None:
    """UserError unless `tokens` is a tensor of whole numbers of shape `(B, N)`."""
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
