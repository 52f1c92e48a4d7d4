"""The store of a study: all records of its cells in one file, `records.jsonl`, a line each.

Parts that many records share (settings, data, machine) are stored once, in the lines at the top, and a record
names them by a short hash. The records are sorted by cell, so that measuring a cell again changes one line. A
cell that runs has its own file (lab/study/worker.py); publishing alone writes the store. Long curves are
thinned to what a picture can show.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from lab.errors import MALFORMED, UserError
from lab.files import fingerprint, flush_to_disk, replacing, shown_path


class Hardware(TypedDict):
    """The machine of a run; on a GPU its name, too."""

    cpu: str


class Environment(TypedDict):
    """Where and when a run was measured, see `lab.provenance.environment`.

    `commit` began its training; `measured_at` is the one that measured it, where that is another.
    """

    commit: str
    measured_at: NotRequired[str]
    date: str
    threads: float
    hardware: Hardware


class Training(TypedDict):
    """Figures from the log of a run, see `lab.run.log.run_figures`; `curves` have points [update, value]."""

    updates: float
    seconds: float | None
    curves: dict[str, list[list[float | None]]]


class Tuned(TypedDict):
    """A setting that was chosen before the repetitions: the figure, the score of each value, the updates."""

    setting: str
    by: str
    chosen: str
    tried: dict[str, float | None]
    updates: NotRequired[int]  # older records lack it


class Start(TypedDict):
    """The checkpoint that a run started from.

    `fingerprint` is that of the settings of the run that made it, whose `seed` is known then; of a checkpoint
    that the command named, of its content.
    """

    path: str
    fingerprint: str
    seed: NotRequired[int]


class Record(TypedDict):
    """The record of a finished cell: its choices, its training, its measurement and the figures found.

    `cell` has the choice of each axis, the seed and, in a run of tuning, the value tried. `settings` are the
    YAML's, `own_flags` the study's additions, `flags` the user's. `start` is the checkpoint that it started
    from, if any. `checkpoint` and `evaluate` say how it was measured; a run of tuning is not measured, and
    may have `diverged`.
    """

    study: str
    cell: dict[str, Any]
    fingerprint: str
    settings: dict[str, dict[str, Any] | None]
    own_flags: list[str]
    flags: list[str]
    data: dict[str, Any] | None
    training: Training
    start: NotRequired[Start]
    checkpoint: NotRequired[str]
    evaluate: NotRequired[str]
    found: dict[str, Any]
    tuned: NotRequired[Tuned]
    environment: Environment
    diverged: NotRequired[str]


STORE = "records.jsonl"
SHARED = ("settings", "data")
"""What records share as a whole; of their environment they share all but what differs from run to run."""
OF_A_RUN = ("commit", "measured_at", "code", "date", "command")
MACHINE = "machine"
DRAWN_ONLY = "train"
"""The curve that only pictures need."""
POINTS = 100
"""The most points of it in a store; the log of the run has them all."""


def read_store(path: Path) -> list[Record]:
    """The records in a store; empty if the file is missing.

    Raises UserError, naming the line, for a line that is not a record.
    """
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise UserError(f"{shown_path(path)} is not text; restore the file") from None
    shared: dict[str, Any] = {}
    records = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            content = json.loads(line)
            if "shared" in content:
                shared[content["shared"]] = content["value"]
            else:
                records.append(_unpacked(content, shared))
                record_path(records[-1])
        except MALFORMED:
            wrong = "is not a record; restore the file, or remove the line to measure its cell again"
            if line.startswith("<<<<<<< "):
                wrong = "begins a conflict of a merge; keep the lines of both sides, each once"
            raise UserError(f"{shown_path(path)}: line {number} {wrong}") from None
    return records


def stored(folder: Path) -> dict[Path, Record]:
    """The records in a folder's store, by the path that each would have as its own file."""
    path = folder / STORE
    if not path.is_file():
        return {}
    state = path.stat()
    return _stored_at(path, state.st_mtime_ns, state.st_size)


@cache
def _stored_at(path: Path, changed: int, size: int) -> dict[Path, Record]:
    found: dict[Path, Record] = {}
    for record in read_store(path):
        place = record_path(record)
        if place in found:
            raise UserError(f"{shown_path(path)} has two records of {place}; remove one of the two lines")
        found[place] = record
    return found


def record_path(record: Record) -> Path:
    """Where the record of a cell lies as a file, below the folder of its study."""
    cell = record["cell"]
    tried = [f"{axis}-{value}" for axis, value in cell.get("tuning", {}).items()]
    choices = [value for name, value in cell.items() if name not in ("seed", "tuning")]
    return Path(*choices, *tried, f"seed{cell['seed']}.json")


def write_store(path: Path, records: Iterable[Record]) -> None:
    """Replace the store by these records; they are on the disk when it returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(store_text(records).encode())
        flush_to_disk(partial)


def store_text(records: Iterable[Record]) -> str:
    """A store with these records."""
    shared: dict[str, Any] = {}
    lines = [_line(_packed(record, shared)) for record in sorted(records, key=_place)]
    top = [_line({"shared": mark, "value": shared[mark]}) for mark in sorted(shared)]
    return "".join(f"{line}\n" for line in [*top, *lines])


def _packed(record: Record, shared: dict[str, Any]) -> Record:
    """The record with shared parts replaced by hashes; the parts are added to `shared`."""
    environment = record["environment"]
    machine = {key: value for key, value in environment.items() if key not in OF_A_RUN}
    own = {key: environment[key] for key in OF_A_RUN if key in environment}
    curves = dict(record["training"]["curves"])
    if DRAWN_ONLY in curves:
        curves[DRAWN_ONLY] = _thinned(curves[DRAWN_ONLY])
    packed = {
        **record,
        "environment": {**own, MACHINE: _mark(machine, shared)},
        "training": {**record["training"], "curves": curves},
    }
    for key in SHARED:
        packed[key] = _mark(record[key], shared)
    return packed


def _thinned(curve: Sequence[list[float | None]]) -> list[list[float | None]]:
    """At most `POINTS` points of a curve at equal steps, its last among them."""
    step = max(1, math.ceil(len(curve) / POINTS))
    return [*reversed(curve[::-step])]


def _unpacked(packed: Mapping[str, Any], shared: Mapping[str, Any]) -> Record:
    environment = dict(packed["environment"])
    machine = shared[environment.pop(MACHINE)]
    record = {**packed, "environment": {**environment, **machine}}
    for key in SHARED:
        record[key] = shared[packed[key]]
    return record


def _mark(value: Any, shared: dict[str, Any]) -> str:
    mark = fingerprint(value)
    shared[mark] = value
    return mark


def _place(record: Record) -> tuple[str, ...]:
    """Sort key of a record: its choices, tuning before repetitions, then the seed."""
    cell = dict(record["cell"])
    seed, tuning = cell.pop("seed"), cell.pop("tuning", None)
    return (*map(str, cell.values()), json.dumps(tuning), f"{seed:09}")


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False)
