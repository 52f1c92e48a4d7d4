"""Whether files of prepared data still have the content with which they were prepared or trained on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from conventions import PREPARED, UserError

PREPARE = "prepare it again with a script of data-prep/"
HASHES = "sha256"
"""Key of a manifest: the sha256 of every file, by its name."""
COUNTS = ("words", "tokens", "documents", "examples", "longest", "broken_rows", "empty_sentences")
"""The counts of a split; some kinds of data lack some of them."""
State = Sequence[Any]
"""Bytes of a file, time of its last change, sha256."""


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """The sha256 of a file, which is read once as long as it has this time and size."""
    state = path.stat()
    return _sha256_at(path, state.st_mtime_ns, state.st_size)


@cache
def _sha256_at(path: Path, changed: int, size: int) -> str:
    return sha256_of(path)


def fingerprint(decisive: Any) -> str:
    """A short hash of all that decides a result: anything JSON can hold."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def hashes_of(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The sha256 of files below `folder`, by their names there."""
    return {name: sha256_of(folder / name) for name in names}


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The `preparation.json` of a folder; None without one, UserError if it is damaged."""
    path = folder / PREPARED
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        manifest = None
    if not is_manifest(manifest):
        raise UserError(f"{path} is damaged; {PREPARE}")
    return manifest


def is_manifest(found: Any) -> bool:
    """Whether this is a JSON object whose splits, sizes and counts, if any, are as data-prep/ writes them."""
    if not isinstance(found, dict):
        return False
    splits, sizes = found.get("splits", {}), found.get("files", {})
    if not isinstance(splits, dict) or not isinstance(sizes, dict):
        return False
    entries = [entry for entry in splits.values() if isinstance(entry, dict)]
    counts = [entry[key] for entry in entries for key in COUNTS if key in entry]
    counts += [*sizes.values(), *([] if found.get("vocabulary") is None else [found["vocabulary"]])]
    return len(entries) == len(splits) and all(type(count) is int and count >= 0 for count in counts)


def _prepared(folder: Path) -> tuple[dict[str, str], set[str]]:
    """The hashes and the splits in the manifest of a folder; nothing without one, or in an older one."""
    try:
        manifest = manifest_of(folder) or {}
        return dict(manifest[HASHES]), set(manifest["splits"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}, set()


def check_prepared(folder: Path, *splits: str) -> None:
    """UserError for a file, of `splits` or shared by all, that was changed since its preparation.

    Only files that were changed after the manifest was written are read, each once in a process.
    """
    hashes, others = _prepared(folder)
    for name, wanted in hashes.items():
        path = folder / name
        if path.name.partition(".")[0] in others - {*splits} or not path.is_file():
            continue
        if is_newer(path, folder / PREPARED) and known_sha256(path) != wanted:
            raise UserError(
                f"{path} has changed since it was prepared; prepare the data again, or restore the file"
            )


def is_newer(path: Path, manifest: Path) -> bool:
    """Whether a file was written, moved or copied to its place after the manifest."""
    return path.stat().st_ctime_ns > manifest.stat().st_ctime_ns


def states_of(folder: Path, names: Sequence[str], known: Mapping[str, State]) -> dict[str, list[Any]]:
    """The state of files below `folder`; a file is read if its bytes or its time are not the `known` ones."""
    prepared, found = _prepared(folder)[0], {}
    for name in names:
        path = folder / name
        about = [path.stat().st_size, path.stat().st_mtime_ns]
        if list(known.get(name, ()))[:2] == about:
            digest = known[name][2]
        elif name in prepared and not is_newer(path, folder / PREPARED):
            digest = prepared[name]
        else:
            digest = known_sha256(path)
        found[name] = [*about, digest]
    return found
