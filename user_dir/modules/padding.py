"""Padding on the left: rolled away where tokens enter a model, rolled back where they leave."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class _Known(threading.local):
    """Whether the rows of this thread's model are known to be without padding."""

    whole = False


_known = _Known()


@contextmanager
def rows_without_padding() -> Iterator[None]:
    """Inside the block, models take rows to be without padding, which a compiled model cannot check.

    Models of other threads still check.
    """
    _known.whole = True
    try:
        yield
    finally:
        _known.whole = False


def padding_last(tokens: Tensor, padding_idx: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Rows `(B, N)` with their padding at the end.

    Returns:
        The tokens, their padding mask `(B, N)`, None without padding, and by how much each row was rolled to
        the left, `(B,)`, None when none was.
    """
    if _known.whole:
        return tokens, None, None
    padding_mask = tokens.eq(padding_idx)
    if not padding_mask.any():
        return tokens, None, None
    if not padding_mask[:, 0].any():
        return tokens, padding_mask, None
    shift = padding_mask.long().cumprod(dim=1).sum(dim=1)
    tokens = roll_rows(tokens, shift)
    return tokens, tokens.eq(padding_idx), shift


def padding_back(states: list[Tensor], shift: Tensor | None) -> list[Tensor]:
    """States `(N, B, D)` of rows that `padding_last` has rolled by `shift`, rolled back."""
    if shift is None:
        return states
    return [roll_rows(x.transpose(0, 1), -shift).transpose(0, 1) for x in states]


def roll_rows(x: Tensor, shift: Tensor) -> Tensor:
    """Rows of `x: (B, N, ...)` moved to the left by `shift: (B,)`, what falls out coming in on the right."""
    length = x.shape[1]
    index = (torch.arange(length, device=x.device) + shift[:, None]) % length
    index = index.view(*index.shape, *([1] * (x.dim() - 2)))
    return x.gather(1, index.expand_as(x))
