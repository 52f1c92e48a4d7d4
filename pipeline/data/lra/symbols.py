"""Text to dictionary indices: bytes (Skyformer's pipeline) or characters (the state-space one)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.data.lra import writing
from pipeline.data.tokenization import SPECIAL_SYMBOLS

FIRST = len(SPECIAL_SYMBOLS)
"""The dictionary index of the first symbol."""

END = SPECIAL_SYMBOLS.index("</s>")
UNKNOWN = SPECIAL_SYMBOLS.index("<unk>")
CODE_POINTS = 0x110000


class Symbols(Protocol):
    """A way to number the pieces of a text."""

    def encode(self, text: bytes) -> np.ndarray:
        """The row of a UTF-8 text, cut to the task's length: int64 of shape (length,)."""

    def finish(self, folder: Path, stems: Sequence[str], counted: Sequence[str]) -> int:
        """Write dict.txt with the counts in the files `counted` of `stems`; returns its size."""


class ByteSymbols:
    """Byte b is the symbol `b`, index FIRST + b; the first `length` bytes are kept."""

    def __init__(self, length: int) -> None:
        self.length = length

    def encode(self, text: bytes) -> np.ndarray:
        """The row of a text."""
        return np.frombuffer(text[: self.length], dtype=np.uint8).astype(np.int64) + FIRST

    def finish(self, folder: Path, stems: Sequence[str], counted: Sequence[str]) -> int:
        """All 256 bytes, used or not."""
        counts = writing.count_tokens(folder, counted)[FIRST : FIRST + 256]
        return writing.write_dictionary(folder, [str(byte) for byte in range(256)], counts.tolist())


class CharacterSymbols:
    """Characters, the first `length` - 1 kept and `</s>` added; rare ones are <unk>.

    Characters get provisional indices in the order they are met; `finish` keeps those that occur
    `least` times in the counted files, the most frequent first, and renumbers what was written.
    """

    def __init__(self, length: int, least: int) -> None:
        self.length = length
        self.least = least
        self.indices = np.zeros(CODE_POINTS, dtype=np.int64)
        self.characters: list[int] = []

    def encode(self, text: bytes) -> np.ndarray:
        """The row of a text, in provisional indices."""
        points = np.frombuffer(text.decode()[: self.length - 1].encode("utf-32-le"), dtype=np.uint32)
        for point in np.unique(points[self.indices[points] == 0]).tolist():
            self.indices[point] = FIRST + len(self.characters)
            self.characters.append(point)
        return np.append(self.indices[points], END)

    def finish(self, folder: Path, stems: Sequence[str], counted: Sequence[str]) -> int:
        """The characters that are frequent enough; all `stems` are rewritten in final indices."""
        counts = writing.count_tokens(folder, counted)[FIRST : FIRST + len(self.characters)].tolist()
        pairs = zip(counts, self.characters, strict=True)
        kept = sorted((-count, point) for count, point in pairs if count >= self.least)
        table = np.full(writing.MOST_ENTRIES, UNKNOWN, dtype=writing.TOKEN_TYPE)
        table[:FIRST] = range(FIRST)
        for number, (_, point) in enumerate(kept):
            table[self.indices[point]] = FIRST + number
        writing.replace_tokens(folder, stems, table)
        names = [f"U+{point:04X}" for _, point in kept]
        return writing.write_dictionary(folder, names, [-count for count, _ in kept])
