"""Turns text files into a folder that fairseq trains on.

The folder is built under another name beside its final one (`NAME.preparing`) and renamed when complete, so
that the final name never holds half a corpus. `preparation.json` describes its content.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from fairseq.data import Dictionary, indexed_dataset
from numpy.lib import format as npy

from conventions import OUT_OF_SPACE, PREPARED
from conventions.content import HASHES, hashes_of
from lab.data.prepared import DICTIONARY, NEW, read_manifest
from lab.data.tokenization import Tokenize
from lab.errors import UserError
from lab.files import RUN_MARK, begin, check_output_folder, known_sha256, made_folder, write_json

COMMANDS = "data-prep"


@dataclass(frozen=True)
class Split:
    """One split as given: `words` counts white-space words plus one end-of-line per line."""

    words: int
    bytes: int
    sha256: str
    sha1: str = ""
    """Given where the text may be a published one."""
    documents: int | None = None
    """Where the text keeps an empty line between documents, their number."""


Build = Callable[[Path], dict]
"""Fills a folder and returns its manifest."""


def text_path(folder: Path, split: str) -> Path:
    """Where a split's plain text lies while the folder is made."""
    return folder / f"{split}.txt"


def describe(manifest: dict) -> str:
    """One line per split, for people."""
    unverified = " (NOT verified)" if manifest["verified"] is False else ""
    lines = [
        f"{manifest['corpus']}{unverified}, {manifest['tokenizer']}, dictionary of {manifest['vocabulary']:,}"
    ]
    lines += [
        f"  {name}: {split['words']:,} words, {split['tokens']:,} tokens"
        for name, split in manifest["splits"].items()
    ]
    return "\n".join(lines)


def prepare_once(dest: Path, build: Build) -> dict:
    """The manifest of `dest`, which `build` makes unless it is there.

    `build` fills a folder beside `dest` that becomes `dest` at the end, or disappears on any failure.
    Leftovers of a killed run are removed; a live run is waited for. Where `dest` is a link, the folder is
    made where it leads.
    """
    if manifest := read_manifest(dest, NEW):
        return manifest
    dest = dest.resolve()
    if dest.is_mount():
        raise UserError(f"{dest} is a mount point; name a folder inside it with --dest")
    check_output_folder(dest, "--dest", takes_prepared=True)
    with made_folder(dest.parent):
        return _prepare(dest, build)


def _prepare(dest: Path, build: Build) -> dict:
    folder = dest.with_name(f"{dest.name}.preparing")
    lock = _lock(folder)
    try:
        begin(folder, COMMANDS, "", option="--dest")
        try:
            manifest = read_manifest(dest, NEW)  # another run may have made it meanwhile
            if manifest is None:
                _clear(folder)
                manifest = build(folder)
                os.rename(folder, dest)
            return manifest
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            raise UserError(
                f"no space left on the disk of {dest}; free some and run the same command again"
            ) from None
        raise
    finally:
        os.close(lock)


def check_prepared_with(dest: Path, manifest: dict, wanted: dict[str, Any]) -> None:
    """UserError where the folder `dest` was prepared with other settings than `wanted`."""
    for key, value in wanted.items():
        if manifest.get(key) != value:
            raise UserError(
                f"{dest} was prepared {_in_words(key, manifest.get(key))}, not {_in_words(key, value)}; name "
                "another --dest or move it away"
            )


def check_files(
    dest: Path, manifest: dict, source: Path | None, summed: Mapping[str, str] | None = None
) -> None:
    """UserError if `source`, or a file in it, differs from what `dest` was made from.

    `summed` is the hash of all files in a folder, where the manifest has only that.
    """
    known = manifest.get("sources", {})
    if source is None or not known:
        return
    if source.is_file():
        others = [] if known_sha256(source) in known.values() else [source]
    elif summed:
        others = [] if summed == known else [source]
    else:
        there = {source / name: digest for name, digest in known.items() if (source / name).is_file()}
        others = [path for path, digest in there.items() if known_sha256(path) != digest]
    if others:
        raise UserError(
            f"{dest} was prepared from other files than {others[0]}; name another --dest or move it away"
        )


def _in_words(key: str, value: Any) -> str:
    """A setting as "with size 4", "with grey" or "without grey"."""
    name = key.replace("_", " ")
    if value is None or isinstance(value, bool):
        return f"with {name}" if value else f"without {name}"
    return f"with {name} {value}"


def check_accepted(dest: Path, made_from: str, accepted: bool, option: str) -> None:
    """UserError unless the user `accepted` a folder `made_from` other files than the published ones."""
    if not accepted:
        raise UserError(
            f"{dest} was prepared from {made_from}; name another --dest, or accept it with {option}"
        )


def _lock(folder: Path) -> int:
    """Create and lock `folder`; the lock dies with this process and those it has started.

    The folder itself is locked, by a descriptor that children inherit. The package filelock locks only
    files, leaves them behind, and releases them although a child still writes.
    """
    while True:
        # With parents: the run that was waited for may have taken them away.
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another run at work in {folder} ...", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            return descriptor  # a file system without locks
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                return descriptor
        os.close(descriptor)  # it was renamed or removed by the run that held it


def _clear(folder: Path) -> None:
    """Empty a folder, except for its mark."""
    for entry in folder.iterdir():
        if entry.name == RUN_MARK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def finish(
    folder: Path,
    corpus: str,
    splits: dict[str, Split],
    tokenize: Tokenize,
    verified: bool | None,
    source: Path | None = None,
) -> dict:
    """Turn the texts in `folder` into fairseq's files; write and return the manifest.

    `verified` is None for a text of which no checksum was ever published, `source` the folder or archive
    that the text came from, if any.
    """
    tokenizer = tokenize({split: text_path(folder, split) for split in splits})
    dictionary = Dictionary.load(str(folder / DICTIONARY))
    entries = {}
    for name, split in splits.items():
        tokens = _binarise(folder, name, dictionary)
        entries[name] = {"words": split.words, "tokens": tokens, "sha256": split.sha256}
        if split.documents is not None:
            entries[name]["documents"] = split.documents
    manifest = {
        "corpus": corpus,
        "tokenizer": tokenizer,
        "vocabulary": len(dictionary),
        "splits": entries,
        "verified": verified,
    }
    if source is not None:
        sizes = {name: split.bytes for name, split in splits.items()}
        manifest["source"] = {"path": os.path.abspath(source), "bytes": sizes}
    return write_manifest(folder, manifest)


def _binarise(folder: Path, split: str, dictionary: Dictionary) -> int:
    """Replace a split's text by its rows, as fairseq-preprocess writes them; returns their tokens."""
    print(f"Binarising {split} ...", flush=True)
    text = text_path(folder, split)
    with text.open(encoding="utf-8", newline="\n") as lines:
        lengths = write_rows(folder / split, numbered(lines, dictionary), len(dictionary))
    text.unlink()
    return sum(lengths)


def write_manifest(folder: Path, manifest: dict) -> dict:
    """Write preparation.json, the sizes and hashes of all files of `folder` added; returns it."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != RUN_MARK)
    manifest["files"] = {str(file.relative_to(folder)): file.stat().st_size for file in files}
    manifest[HASHES] = hashes_of(folder, [*manifest["files"]])
    write_json(folder / PREPARED, manifest)
    return manifest


ROWS_BETWEEN_REPORTS = 200_000


@contextmanager
def row_writer(stem: Path, entries: int) -> Iterator[Callable[[torch.Tensor], None]]:
    """Yields a function that appends a row of shape (length,) to STEM.bin; writes STEM.idx after the block.

    `entries` is the size of the dictionary, which decides the type of the numbers.
    """
    builder = indexed_dataset.make_builder(f"{stem}.bin", impl="mmap", vocab_size=entries)
    try:
        yield builder.add_item
    except BaseException:
        with suppress(OSError):  # Python 3.13 reports data that a forgotten file could not write
            builder._data_file.close()
        raise
    builder.finalize(f"{stem}.idx")


def write_rows(stem: Path, rows: Iterable[torch.Tensor], entries: int) -> list[int]:
    """Write all rows; returns their lengths."""
    lengths = []
    with row_writer(stem, entries) as add:
        for row in rows:
            add(row)
            lengths.append(len(row))
            if len(lengths) % ROWS_BETWEEN_REPORTS == 0:
                print(f"  {stem.name}: {len(lengths):,} rows", flush=True)
    return lengths


def numbered(lines: Iterable[str], dictionary: Dictionary) -> Iterator[torch.Tensor]:
    """The words of each line as numbers of the dictionary, `</s>` at the end: int32 of shape (length,).

    The same as `dictionary.encode_line`, which fills a tensor number by number.
    """
    indices, unknown, end = dictionary.indices, dictionary.unk(), dictionary.eos()
    for line in lines:
        numbers = [indices.get(word, unknown) for word in line.split()]
        yield torch.tensor([*numbers, end], dtype=torch.int32)


def save_array(path: Path, array: np.ndarray) -> None:
    """Write the file that `np.save` would write."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
        file.write(array.data)


def begin_bytes(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """Write the header of a uint8 file of this shape; the elements follow in C order."""
    npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
