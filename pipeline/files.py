"""The repository's root, files written whole or not at all, and results that are made once."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
FINGERPRINT = "fingerprint"  # key in a record, and file in the folder of a run


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none: under another name first, then renamed."""
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, record: Any) -> None:
    """`record` as readable JSON, in one piece, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """What `path` holds; UserError if it cannot be read or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read as JSON; move it away or restore it") from None


def shown_path(path: Path) -> str:
    """`path` as a person in the repository's root would type it."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def fingerprint(decisive: Any) -> str:
    """A short hash of all that decides a result: anything JSON can hold."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def finished(path: Path, mark: str) -> dict[str, Any] | None:
    """The record in `path` if it has the fingerprint `mark`, None if there is none.

    Raises UserError if it has another one.
    """
    if not path.exists():
        return None
    record = read_json(path)
    _check_same(path, record.get(FINGERPRINT), mark)
    return record


def once(path: Path, mark: str, make: Callable[[], dict[str, Any]], title: str) -> dict[str, Any]:
    """The record with the fingerprint `mark` in `path`: the one that is there, or what `make` returns.

    Says under `title` that it was done before. Raises UserError if `path` holds another record.
    """
    record = finished(path, mark)
    if record is not None:
        print(f"{title}: done before ({shown_path(path)})", flush=True)
        return record
    record = {FINGERPRINT: mark, **make()}
    write_json(path, record)
    return record


def begin(folder: Path, mark: str) -> None:
    """Make the folder of a run with the fingerprint `mark`, or take it up as such a run has left it.

    Raises UserError if it is the folder of another run.
    """
    file = folder / FINGERPRINT
    if file.exists():
        _check_same(folder, file.read_text(encoding="utf-8"), mark)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, mark.encode())


def _check_same(path: Path, found: str | None, wanted: str) -> None:
    if found != wanted:
        raise UserError(
            f"{shown_path(path)} was made with other settings (fingerprint {found} instead of {wanted}); "
            "move it away or name another folder"
        )
