"""Files of a command: the repository's folders, atomic writes, run-once results, and where it may write.

A command replaces only its own results, and works in no folder where another run is at work; anything else is
refused first.
"""

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from conventions import LOCKED, OUT_OF_SPACE, PREPARED
from conventions.content import fingerprint as fingerprint
from conventions.content import known_sha256 as known_sha256
from conventions.content import sha256_of as sha256_of
from conventions.files import hold_lock, is_plain, partials_of, replacing
from lab.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
MEASURED = RESULTS / "measured"  # shown in the documents
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
    """Make `folder` and its parents; if the block fails, remove the new ones that are empty."""
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


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; UserError if it cannot be read or holds something else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object; move it away or restore it")
    return found


def read_unless_moved(path: Path) -> Any:
    """`read_json` of a record, which another process may just have moved into the store of its study.

    Raises FileNotFoundError where there is no file.
    """
    try:
        return read_json(path)
    except UserError:
        if not path.exists():
            raise FileNotFoundError(path) from None
        raise


def shown_path(path: Path) -> str:
    """`path` as one would type it in the repository's root, where a link such as `data` keeps its name."""
    named, real = Path(os.path.abspath(path)), path.resolve()
    inside = next((one for one in (named, real) if one.is_relative_to(ROOT)), None)
    return str(inside.relative_to(ROOT)) if inside else str(real)


def finished(path: Path, mark: str) -> dict[str, Any] | None:
    """The record in `path` if it has the fingerprint `mark`, None if there is none.

    Raises UserError if it has another one.
    """
    try:
        record = read_unless_moved(path)
    except FileNotFoundError:
        return None
    if not isinstance(record, dict) or FINGERPRINT not in record:
        raise UserError(
            f"{shown_path(path)} is not a result of this command; move it away, or choose another --out"
        )
    check_same(path, record[FINGERPRINT], mark)
    return record


def once(path: Path, mark: str, make: Callable[[], dict[str, Any]], title: str) -> dict[str, Any]:
    """The record with the fingerprint `mark` in `path`; `make` computes it if the file is missing.

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
    """Make the folder of a run with the fingerprint `mark`, or continue in the folder of the same run.

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
            f"{shown_path(folder)} holds files that this command has not written; move it away, or "
            f"choose another {option}"
        )
    return False


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing, or only the mark of a run that was killed while writing the mark."""
    return set(folder.iterdir()) <= set(partials_of(folder / RUN_MARK))


def _other(found: Any, wanted: str) -> str:
    if not found:
        return f"another model than {wanted}"
    return f"{found} as it was before" if found == wanted else f"{found}, not {wanted}"


def is_run(folder: Path, command: str) -> bool:
    """Whether the mark of `folder` names `command`."""
    if not (folder / RUN_MARK).is_file():
        return False
    mark = read_json(folder / RUN_MARK)
    return isinstance(mark, dict) and mark.get("command") == command


def check_same(path: Path, found: str | None, wanted: str, option: str = "--out") -> None:
    """UserError unless the fingerprint `found` at `path` equals `wanted`."""
    if found != wanted:
        raise UserError(
            f"{shown_path(path)} was made with other settings (fingerprint {found} instead of {wanted}); "
            f"move it away, or choose another {option}"
        )


Ours = Callable[[Path], bool]
"""Whether a file that exists is a result of the command."""

# Folders of the project itself, which take no results; `results` holds those of the documents.
PROJECT_FOLDERS = (".ci", ".git", ".venv", "benchmarks", "causal_linear_attention", "configs", "conventions")
PROJECT_FOLDERS += ("data-prep", "docs", "lab", "scripts", "tests", "user_dir")
LARGEST_RECORD = 64 * 2**20
"""Bytes; every record of a command is far smaller."""
MARK = "<!-- linear-attention has generated this page: what is changed here is lost -->"
"""The first line of every generated page."""


def check_output(
    out: Path,
    ours: Ours,
    inputs: Iterable[Path | None] = (),
    beside: Iterable[str] = (),
    option: str = "--out",
    makes_folder: bool = False,
) -> None:
    """UserError unless the file `out`, and its companions `beside` it, can be written.

    An ending replaces that of `out`: with ".md" or ".png", `a.json` has `a.md` or `a.png` beside it.

    An existing `out` is replaced only if it is `ours`, those beside it only together with it. None may be one
    of the `inputs`, under any name. The folder must exist, unless the command `makes_folder`.
    """
    try:
        if out.is_dir():
            raise UserError(f"cannot write {out}, which is a folder; name a file with {option}")
        folder = out.absolute().parent
        usable = (makes_folder or folder.is_dir()) and _can_hold(folder)
    except OSError:
        usable = False
    if not usable:
        raise UserError(f"cannot write {out}: its folder is missing or read-only; choose another {option}")
    companions = [out.with_name(out.stem + ending) for ending in beside]
    if out in companions:
        raise UserError(
            f"{option} is {out}, but this command writes {out.suffix} beside it; take another ending"
        )
    for file, read in product((out, *companions), filter(None, inputs)):
        if file.exists() and read.exists() and file.samefile(read):
            raise UserError(f"{file} is read by this command; name another file with {option}")
    replaces = is_plain(out) and ours(out)
    for file in (out, *companions):
        generated = file is out or is_generated(file)
        if os.path.lexists(file) and not (replaces and is_plain(file) and generated):
            raise UserError(
                f"{file} is not a result of this command; move it away, or name another file with {option}"
            )
    _check_not_own(out.absolute().parent, out, option)
    _check_not_prepared(out.absolute().parents, out, option)


def check_same_result(out: Path, wanted: Mapping[str, Any]) -> None:
    """UserError if the file `out` is there and holds a result with other settings than `wanted`."""
    record = read_json(out) if out.is_file() else {}
    for key, value in wanted.items():
        if record.get(key, value) != value:
            raise UserError(
                f"{out} holds another result, with {key.replace('_', ' ')} {record[key]} instead of {value}; "
                "move it away, or name another file with --out"
            )


def say_replaced(out: Path) -> None:
    """Announce that a result of the command, which names neither checkpoint nor input, will be replaced."""
    if out.is_file():
        print(
            f"note: {shown_path(out)}, perhaps of another checkpoint or input, will be replaced", flush=True
        )


def is_generated(path: Path) -> bool:
    """Whether a page or picture carries the mark of generated files; True for other kinds of files."""
    sign = GENERATED.get(path.suffix)
    return is_plain(path) and (sign is None or sign(path))


def marked(page: str) -> str:
    """A page with its mark."""
    return f"{MARK}\n\n{page}"


def check_output_folder(folder: Path, option: str, takes_prepared: bool = False) -> None:
    """UserError unless results can go into `folder`, which need not exist yet.

    It must be neither one of the project's own folders nor inside prepared data; it may be prepared data
    itself if the command `takes_prepared`.
    """
    folder = folder.absolute()
    if "${" in str(folder):
        raise UserError(f"{folder} has a ${{...}}, which fairseq fills in; choose another {option}")
    if folder.resolve() == Path(folder.anchor):
        raise UserError(f"{folder} is the root of the file system; choose another {option}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder with {option}")
    _check_not_own(folder, folder, option)
    if folder.resolve() == ROOT:
        raise UserError(f"{folder} is the project's own folder; choose another {option}")
    _check_not_prepared(folder.parents if takes_prepared else (folder, *folder.parents), folder, option)
    try:
        usable = _can_hold(folder)
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            raise
        usable = False
    if not usable:
        raise UserError(f"the folder {folder} cannot be made or written in; choose another {option}")


def _can_hold(folder: Path) -> bool:
    """Whether files can be written in `folder`, or it can be made; may raise OSError.

    Permissions alone do not tell: root ignores them, and /proc refuses files whatever they say.
    """
    while not os.path.lexists(folder):  # a link that leads nowhere is there
        folder = folder.parent
    if not folder.is_dir():
        return False
    with tempfile.TemporaryFile(dir=folder):
        return True


def _check_not_prepared(folders: Iterable[Path], named: Path, option: str) -> None:
    for above in folders:
        if (above / PREPARED).is_file():
            raise UserError(f"{above} holds prepared data; choose another {option} than {shown_path(named)}")


def _check_not_own(folder: Path, named: Path, option: str) -> None:
    for name in PROJECT_FOLDERS:
        if folder.resolve().is_relative_to(ROOT / name):
            raise UserError(
                f"{named} is in {ROOT / name}, which belongs to the project; choose another {option}"
            )


def json_with(*keys: str, **values: Any) -> Ours:
    """Recognises a JSON object by its `keys` and `values`."""

    def ours(path: Path) -> bool:
        if path.stat().st_size > LARGEST_RECORD:
            return False
        try:
            record = read_json(path)
        except UserError:
            return False
        return (
            isinstance(record, dict)
            and set(keys) <= set(record)
            and all(record.get(key) == value for key, value in values.items())
        )

    return ours


def begins(sign: str, within: int = 0) -> Ours:
    """Recognises a file by `sign` at its beginning, or after at most `within` bytes."""
    wanted = sign.encode()

    def ours(path: Path) -> bool:
        with path.open("rb") as file:
            return wanted in file.read(within + len(wanted))

    return ours


GENERATED = {".md": begins(MARK), ".png": begins("tEXtSource\0", within=300)}
"""How pages and pictures are recognised; `lab/publish/plots.py` gives every picture a Source."""


@contextmanager
def run_lock(folder: Path, patience: float = 0, option: str = "--save-dir") -> Iterator[int]:
    """Keep other runs out of `folder`; gives the descriptor that holds the lock.

    Waits up to `patience` seconds for a run at work there. `option` is the flag that names another folder.

    The lock lasts as long as any process has the descriptor open, so a child that inherits it keeps
    the folder even if its parent is killed. UserError names the host and process that hold the lock.
    """
    descriptor = hold_lock(folder, option, partial(print, flush=True), patience)
    try:
        with _said_to_children(folder):
            yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _said_to_children(folder: Path) -> Iterator[None]:
    """Inside the block, started processes know that `folder` is already locked for them."""
    before = os.environ.get(LOCKED)
    os.environ[LOCKED] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ[LOCKED]
        else:
            os.environ[LOCKED] = before
