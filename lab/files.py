"""Repository root, atomic writes, run-once results."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from conventions.content import fingerprint as fingerprint
from conventions.content import known_sha256 as known_sha256
from conventions.content import sha256_of as sha256_of
from conventions.files import partials_of, replacing
from lab.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
MEASURED = RESULTS / "measured"  # what the documents show
BENCHMARKS = ROOT / "runs" / "benchmarks"  # where the benchmarks write without --out
FINGERPRINT = "fingerprint"  # key in a record, and in the mark of a run's folder
RUN_MARK = ".linear-attention-run.json"
"""In the folder of a run: the command that made it."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write the whole file or nothing."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def flush_to_disk(path: Path) -> None:
    """Wait until a written file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make `folder` and its parents; if what is done inside fails, the new ones that are empty go again."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for one in new:
            with suppress(OSError):
                one.rmdir()
        raise


def write_json(path: Path, record: Any) -> None:
    """`record` as JSON in one piece, a line for each key and each curve; its folder is made if need be.

    JSON has neither NaN nor infinity: they become null.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json_text(_finite(record)) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def renewed(texts: Mapping[Path, str], check: bool) -> list[Path]:
    """Write the files that do not have their text, unless this is a `check`; returns these files."""
    old = [path for path, text in texts.items() if not path.is_file() or path.read_bytes() != text.encode()]
    if not check:
        for path in old:
            write_atomically(path, texts[path].encode())
    return old


LONGEST_LINE = 400


def json_text(value: Any, indent: str = "") -> str:
    """JSON with a short mapping or a curve on one line, any other mapping with a line for each key."""
    inner, flat = f"{indent} ", json.dumps(value, ensure_ascii=False)
    nested = isinstance(value, list | tuple) and any(isinstance(one, dict) for one in value)
    if (indent and len(flat) <= LONGEST_LINE) or not value or not (isinstance(value, dict) or nested):
        return flat
    if isinstance(value, dict):
        lines = [
            f"{json.dumps(str(key), ensure_ascii=False)}: {json_text(one, inner)}"
            for key, one in value.items()
        ]
    else:
        lines = [json_text(one, inner) for one in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{last}"


def read_json(path: Path) -> Any:
    """The content of `path`; UserError if it cannot be read or is not JSON."""
    try:
        if not path.is_file():  # a pipe would never end
            raise OSError
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read as JSON; move it away or restore it") from None


def shown_path(path: Path) -> str:
    """`path` as one would type it in the repository's root."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def finished(path: Path, mark: str) -> dict[str, Any] | None:
    """The record in `path` if it has the fingerprint `mark`, None if there is none.

    Raises UserError if it has another one.
    """
    if not path.exists():
        return None
    record = read_json(path)
    if not isinstance(record, dict) or FINGERPRINT not in record:
        raise UserError(
            f"{shown_path(path)} is no result of this command; move it away, or choose another --out"
        )
    check_same(path, record[FINGERPRINT], mark)
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


def begin(folder: Path, command: str, mark: str, content: str = "", option: str = "--out") -> None:
    """Make the folder of a run with the fingerprint `mark`, or take it up as such a run has left it.

    `content` says in words what the folder will hold. Raises UserError as `check_begin` does.
    """
    if not check_begin(folder, command, mark, content, option):
        about = {"content": content} if content else {}
        write_json(folder / RUN_MARK, {"command": command, FINGERPRINT: mark, **about})


def check_begin(folder: Path, command: str, mark: str, content: str = "", option: str = "--out") -> bool:
    """Whether `folder` holds a run of `command` with the fingerprint `mark`; False for a new one.

    Raises UserError if it is the folder of another run, or holds files but no mark of `command`.
    """
    if is_run(folder, command):
        found = read_json(folder / RUN_MARK)
        if content and found.get(FINGERPRINT) != mark:
            raise UserError(
                f"{shown_path(folder)} holds {_other(found.get('content'), content)}; move it away, or "
                f"choose another {option}"
            )
        check_same(folder, found.get(FINGERPRINT), mark, option)
        return True
    if os.path.lexists(folder) and not (folder.is_dir() and is_empty(folder)):
        raise UserError(
            f"{shown_path(folder)} holds what {command} has not written; move it away, or choose another "
            f"{option}"
        )
    return False


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing, or the mark of a run that was killed as it wrote that."""
    return set(folder.iterdir()) <= set(partials_of(folder / RUN_MARK))


def _other(found: Any, wanted: str) -> str:
    if not found:
        return f"another model than {wanted}"
    return f"{found} as it was before" if found == wanted else f"{found}, not {wanted}"


def is_run(folder: Path, command: str) -> bool:
    """Whether `folder` is marked as one that `command` has made."""
    if not (folder / RUN_MARK).is_file():
        return False
    mark = read_json(folder / RUN_MARK)
    return isinstance(mark, dict) and mark.get("command") == command


def check_same(path: Path, found: str | None, wanted: str, option: str = "--out") -> None:
    """UserError unless the fingerprint `found` of what is at `path` is the one `wanted`."""
    if found != wanted:
        raise UserError(
            f"{shown_path(path)} was made with other settings (fingerprint {found} instead of {wanted}); "
            f"move it away, or choose another {option}"
        )
