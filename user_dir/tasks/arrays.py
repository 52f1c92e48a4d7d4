"""The arrays of a prepared folder, and the errors for missing or damaged ones."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError


def load_array(folder: Path, name: str, prepare: str, **how: Any) -> np.ndarray:
    """The array in the file `name`; `how` as for `np.load`.

    Raises UserError, ending with the advice `prepare`, where the file is missing or damaged.
    """
    try:
        return np.load(folder / name, allow_pickle=False, **how)
    except FileNotFoundError:
        raise UserError(f"the data folder {folder} has no {name}; {prepare}") from None
    except (ValueError, EOFError):
        raise UserError(f"{folder / name} is damaged; {prepare}") from None


def load_labels(
    folder: Path, split: str, rows: Collection[int], classes: int, corpus: str, prepare: str
) -> np.ndarray:
    """The classes of a split's rows, `(rows,)`, from `SPLIT.label.npy`.

    Args:
        folder, prepare: as for `load_array`.
        rows: the number of rows of each of the split's inputs.
        classes: how many there are.
        corpus: name of the data, for messages.

    Raises:
        UserError: for a missing or damaged file, another number of labels, or one out of range.
    """
    labels = load_array(folder, f"{split}.label.npy", prepare)
    if wrong := [count for count in rows if count != len(labels)]:
        raise UserError(f"{split} of {folder} has {len(labels)} labels for {wrong[0]} rows; {prepare}")
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        raise UserError(
            f"label {labels[outside[0]]} of row {outside[0]} in {split}.label.npy is out of range: "
            f"{corpus} has classes 0 to {classes - 1}; {prepare}"
        )
    return labels
