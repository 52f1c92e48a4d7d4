"""A folder written by fairseq-preprocess or by data-prep/: checked before use, and its entry in a record.

fairseq maps the files into memory, so it notices a truncated one only when a read passes its end, long after
the start. `preparation.json`, which data-prep/ writes, adds how tokens relate to words.
"""

import os
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conventions import PREPARED
from conventions.content import HASHES, PREPARE, check_prepared, fingerprint, manifest_of
from conventions.files import check_no_pipe
from lab.errors import UserError
from lab.files import known_sha256

SPLITS = ("train", "valid", "test")

WORDS, PIECES, BYTE_PAIRS = "words", "sentencepiece", "gpt2"
"""The tokenisers, as `tokenizer` in preparation.json."""
DICTIONARY = "dict.txt"
BYTE_PAIR_FILES, PIECE_FILES = ("encoder.json", "vocab.bpe"), ("sentencepiece.bpe.model",)
VOCABULARY_FILES = (DICTIONARY, *BYTE_PAIR_FILES, *PIECE_FILES)
"""Files that say how text becomes numbers, in a prepared folder and beside a checkpoint."""

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQ")
"""The header of fairseq's memory-mapped index: magic, version, code of the numbers' type, number of rows."""
LENGTH_BYTES = 4
ROW_BYTES = LENGTH_BYTES + 8
"""Behind the header: the lengths of all rows, then where each begins."""
ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 8, 8: 2, 9: 4, 10: 8}
"""The bytes of a number by the code of its type in `fairseq.data.indexed_dataset`."""

# The entry of the data in a record: the part of the manifest that decides a result.
CORPUS = "corpus"
"""Its name; two folders with equal tokens are one corpus."""
CONTENT = "content"
"""A hash of all files, where the splits have none of their own; records made before this key lack it."""
LRA = ("task", "pipeline", "origin", "seed", "length", "end_token", "close_brackets", "valid_fraction")
IMAGES = (CORPUS, "verified", "levels", "height", "width", "channels")
GLUE = ("task", "tokenizer", "tokenizer_fingerprint", "partial")
GLUE_SPLIT = ("examples", "sha256")
TEXT = (CORPUS, "tokenizer", "vocabulary", "splits")


@dataclass(frozen=True)
class PreparedData:
    """A prepared corpus; `manifest` is its preparation.json, empty if it has none."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def dictionary(self) -> Path:
        """The file with the vocabulary."""
        return self.folder / DICTIONARY

    @property
    def sentencepiece_model(self) -> Path | None:
        """The sentencepiece model, None if the tokens are whole words."""
        model = self.folder / PIECE_FILES[0]
        return model if model.is_file() else None

    def splits(self) -> list[str]:
        """The names of the splits that are there, the usual ones first."""
        found = {path.stem for path in self.folder.glob("*.idx")}
        return [name for name in SPLITS if name in found] + sorted(found - set(SPLITS))

    def words(self, split: str) -> int | None:
        """Words of the raw text, with one end-of-line per line; None if they were not counted.

        Where documents are marked, the rows lack the text's empty lines, so that they have fewer words.
        """
        return None if self.words_unknown(split) else self.manifest["splits"][split]["words"]

    def words_unknown(self, split: str) -> str | None:
        """Why `words` is None, as a phrase; None if it is known."""
        entry = self.manifest.get("splits", {}).get(split, {})
        if "documents" in entry:
            return "the rows lack the empty lines of the text, whose words were counted"
        if "words" in entry:
            return None
        return f"{self.folder} has no {PREPARED} with its number of words, as data-prep/ writes it"

    def tokens(self, split: str) -> int:
        """Tokens of a split as fairseq counts them; UserError if a file is missing or truncated."""
        index = self.folder / f"{split}.idx"
        known = self.splits()
        if split not in (*known, *SPLITS) and known:
            raise UserError(f"the data folder {self.folder} has no split {split}; it has {', '.join(known)}")
        content = self.folder / f"{split}.bin"
        for path in (index, content):
            if not path.is_file():
                raise UserError(f"the data folder {self.folder} has no {path.name}; {PREPARE}")
        lengths, size = read_row_lengths(index)
        if not lengths:
            raise UserError(f"the {split} split of {self.folder} is empty; {PREPARE}")
        expected = sum(lengths) * size
        if content.stat().st_size != expected:
            raise UserError(
                f"{content} holds {content.stat().st_size} bytes instead of {expected}; {PREPARE}"
            )
        return sum(lengths)


def open_prepared(folder: Path, splits: tuple[str, ...]) -> PreparedData:
    """Open a prepared corpus and check the files of these splits; UserError if one is damaged."""
    if not folder.is_dir():
        raise UserError(f"no data folder {folder}; prepare it with a script of data-prep/")
    if ":" in str(folder):
        raise UserError(f"fairseq cannot read a path that holds a colon; rename {folder}")
    check_no_pipe(folder)
    manifest = manifest_of(folder) or {}
    data = PreparedData(folder, manifest)
    check_dictionary(data.dictionary)
    size = manifest.get("files", {}).get(DICTIONARY)
    if size not in (None, data.dictionary.stat().st_size):
        raise UserError(f"{data.dictionary} is not {size} bytes long as it was made; {PREPARE}")
    for split in splits:
        data.tokens(split)
    check_prepared(folder, *splits)
    return data


NEW = "move it away, or name another --dest"
TO_READ = "name a folder that a script of data-prep/ has written"
"""What a user can do where a folder holds other files: where the result goes, and where data are read."""


def read_manifest(folder: Path, advice: str = TO_READ) -> dict | None:
    """The manifest of `folder`; None if the folder is missing or empty, UserError if it is damaged."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    check_no_pipe(folder)
    try:
        manifest = manifest_of(folder)
    except (OSError, UserError):
        manifest = None
    if not manifest or "files" not in manifest:
        raise UserError(f"{folder} exists but holds no prepared corpus; {advice}")
    for name, size in manifest["files"].items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise UserError(
                f"{file} is missing or not {size:,} bytes long; name another --dest, or move {folder} away "
                "and prepare again"
            )
    return manifest


def read_row_lengths(index: Path) -> tuple[array, int]:
    """The length of every row, and the bytes of one number; UserError for a damaged index."""
    with index.open("rb") as file:
        header = file.read(HEADER.size)
        magic, _, code, rows = HEADER.unpack(header) if len(header) == HEADER.size else (b"", 0, 0, 0)
        if magic != MAGIC or code not in ITEM_BYTES:
            raise UserError(f"{index} is not the index of a prepared corpus; {PREPARE}")
        if os.fstat(file.fileno()).st_size != HEADER.size + ROW_BYTES * rows:
            raise UserError(f"{index} is truncated; {PREPARE}")
        return array("i", file.read(LENGTH_BYTES * rows)), ITEM_BYTES[code]


def check_dictionary(path: Path) -> None:
    """UserError unless `path` is a dictionary of fairseq's: a word and its count in each line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"the data folder {path.parent} has no {path.name}; {PREPARE}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text; {PREPARE}") from None
    for number, line in enumerate(lines, 1):
        count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")[2]
        if not count.isdecimal():
            raise UserError(f"{path}, line {number}, is not a word and its count; {PREPARE}")


def identify(folder: Path) -> dict[str, Any]:
    """The identity of the data in a folder of data-prep/; UserError if there are none.

    A folder without a manifest, which fairseq-preprocess has written, is known by its files.
    """
    if not folder.is_dir():
        raise UserError(f"no data folder {folder}; prepare it with a script of data-prep/")
    check_no_pipe(folder)
    if (manifest := manifest_of(folder)) is None:
        files = sorted(path for pattern in ("*.idx", "*.bin", "dict*.txt") for path in folder.glob(pattern))
        return {"files": {path.name: known_sha256(path) for path in files}}
    content = {CONTENT: fingerprint(manifest[HASHES])} if HASHES in manifest else {}
    try:
        if "pipeline" in manifest:
            sizes = {name: split["examples"] for name, split in manifest["splits"].items()}
            return {**{key: manifest[key] for key in LRA if key in manifest}, "examples": sizes, **content}
        if "levels" in manifest:
            sizes = {name: split["images"] for name, split in manifest["splits"].items()}
            return {**{key: manifest.get(key) for key in IMAGES}, "images": sizes, **content}
        if "tokenizer_fingerprint" in manifest and "task" in manifest:
            splits = manifest["splits"].items()
            of_each = {name: {key: split[key] for key in GLUE_SPLIT} for name, split in splits}
            return {**{key: manifest[key] for key in GLUE}, "splits": of_each}
        return {key: manifest.get(key) for key in TEXT}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / PREPARED} is damaged; {PREPARE}") from None


def has_valid(identity: dict[str, Any]) -> bool:
    """Whether the data have a valid split; data of Long Range Arena may lack it."""
    return "examples" not in identity or "valid" in identity["examples"]


def same_data(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether two identities are of the same data, whatever their names.

    The content counts where both have it.
    """
    one, other = one or {}, other or {}
    ignored = {CORPUS} if CONTENT in one and CONTENT in other else {CORPUS, CONTENT}
    return all(one.get(key, ...) == other.get(key, ...) for key in {*one, *other} - ignored)
