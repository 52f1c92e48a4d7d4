"""Damaged files of a split, and samples that fairseq would silently leave out of an evaluation."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
OTHER_FORMATS = (b"TNTIDX\x00\x00", b"HUFFIDX\x00")
"""The beginnings of indices of `--dataset-impl` lazy, cached and huffman, which fairseq reads itself."""
HEADER = 26  # bytes: the magic, the format's version, the code of the numbers' type, the number of rows
BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 8, 8: 2, 9: 4, 10: 8}
"""Bytes of one number, by the code of its type in fairseq."""


def check_split_files(path: str) -> None:
    """UserError where PATH.idx or PATH.bin, as fairseq-preprocess writes them, is empty or cut off.

    fairseq maps the files and finds out at a row in the middle, in a traceback that names no file.
    """
    index, content = Path(f"{path}.idx"), Path(f"{path}.bin")
    if not (index.is_file() and content.is_file()):
        return
    if content.stat().st_size == 0:
        raise UserError(f"{content} is empty: the split has no rows; prepare the data again")
    with index.open("rb") as file:
        header = file.read(HEADER)
        if header.startswith(OTHER_FORMATS):
            return
        rows = int.from_bytes(header[18:], "little")
        size = BYTES.get(header[17]) if len(header) == HEADER and header.startswith(MAGIC) else None
        if size is None or index.stat().st_size < HEADER + 12 * rows:
            raise UserError(f"{index} is not a fairseq index, or is cut off; prepare the data again")
        if rows == 0:
            return
        file.seek(HEADER + 4 * (rows - 1))
        last = int.from_bytes(file.read(4), "little") * size
        file.seek(HEADER + 12 * rows - 8)
        expected = int.from_bytes(file.read(8), "little") + last
    if content.stat().st_size < expected:
        raise UserError(
            f"{content} holds {content.stat().st_size:,} bytes instead of {expected:,}; copy it again, or "
            "prepare the data again"
        )


def check_sample_lengths(
    sizes: np.ndarray, context: int, max_tokens: int | None, max_positions: int | None
) -> None:
    """UserError where samples of these `sizes` in tokens, `context` ones before each, would be left out."""
    if not len(sizes):
        raise UserError("the split has no samples; prepare the data again")
    longest = int(sizes.max()) + context
    if max_positions is not None and longest > max_positions:
        count = int((sizes + context > max_positions).sum())
        raise UserError(
            f"{count:,} of {len(sizes):,} samples are longer than the {max_positions} positions of the model "
            f"(the longest has {longest} tokens) and would be left out; give --sample-break-mode none and "
            f"--tokens-per-sample {max_positions} or less"
        )
    if max_tokens is not None and int(sizes.max()) > max_tokens:
        raise UserError(
            f"--max-tokens is {max_tokens}, less than the {int(sizes.max())} tokens of the longest sample; "
            "raise it, or lower --tokens-per-sample"
        )


def check_room_for_start(task: Any, model: Any) -> None:
    """UserError where `--add-bos-token` makes samples longer than the learned positions of a new model."""
    positions = getattr(getattr(model.decoder, "embed_positions", None), "max_positions", None)
    if not task.add_bos_token or task.sample_break_mode not in ("none", "complete"):
        return
    if positions is not None and task.tokens_per_sample >= positions:
        longest = task.tokens_per_sample + 1
        raise UserError(
            f"--add-bos-token makes samples of {longest} tokens, but the model has {positions} learned "
            f"positions; give --max-target-positions {longest}"
        )


class NotEmpty:
    """An iterator over batches that ends in a UserError if no batch held a sample."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.n = getattr(batches, "n", 0)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        found = False
        for batch in self.batches:
            found = found or "net_input" in batch
            yield batch
        if not found:
            raise UserError("not one token was evaluated; are there more shards (--num-shards) than batches?")
