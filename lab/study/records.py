"""The records of finished cells: reading, checks, and the best choice.

A record belongs to one cell, and its place says which: CHOICE/.../seedN.json below the folder of the study.
With `best`, tables show for each choice of the other axes only the choice with the highest (or lowest) mean
of a figure over the seeds that all have; the other records stay.
"""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lab.errors import UserError
from lab.files import FINGERPRINT, fingerprint, read_unless_moved, shown_path
from lab.publish.tables import grouped
from lab.run.folder import is_aside
from lab.store import STORE, record_path, stored, write_store
from lab.study.schema import (
    Best,
    Record,
    Study,
    follow,
    not_measured,
    sections,
)

PATTERN = "**/seed*.json"
RECORD_FILE = re.compile(r"seed\d+\.json")
OLDER = "older"
"""Key, in memory only, of a record that was measured with other settings than the study has now."""
SHAPE = TypeAdapter(Record)
"""Keys of every record."""


def read_records(folder: Path, study: Study) -> list[Record]:
    """The records of a study's cells in `folder`, without tuning, see `all_records`."""
    return [record for record in all_records(folder, study) if "tuning" not in record["cell"]]


def all_records(folder: Path, study: Study) -> list[Record]:
    """The records of a study in `folder`, runs of tuning included.

    They are in single files, or in the store of the folder; the file of a cell comes first. The records of
    other studies are passed over, and so is what --fresh has moved aside.

    Raises:
        UserError: naming a file that is not JSON, a record in another place than its cell's, or an incomplete
            record.
    """
    found = loose_records(folder, study)
    for place, record in stored(folder).items():
        if folder / place not in found:
            check_record(folder / place, record, folder, study)
            found[folder / place] = record
    return [found[path] for path in sorted(found)]


def loose_records(folder: Path, study: Study) -> dict[Path, Record]:
    """The records of a study in single files; raises UserError as `all_records` does."""
    found = {}
    for path, record in read_files(folder):
        other = named_study(record) not in (None, study.name)
        is_deep = len(path.relative_to(folder).parts) == len(study.axes) + 1
        is_placed = is_deep and RECORD_FILE.fullmatch(path.name)
        if other or not (is_placed or (isinstance(record, dict) and "study" in record)):
            continue
        check_record(path, record, folder, study)
        found[path] = record
    return found


def read_files(folder: Path) -> Iterator[tuple[Path, Any]]:
    """Files with the name of a record, of any study, and their content.

    Those that --fresh has moved aside are left out. Raises UserError for a file that is not JSON.
    """
    for path in sorted(folder.glob(PATTERN)):
        if not is_aside(path, folder):
            with suppress(FileNotFoundError):  # another process has just moved it into the store
                yield path, read_unless_moved(path)


def gather(folder: Path, study: Study, check: bool) -> list[Path]:
    """Move the records of `folder` into its store, or only list them; returns their files."""
    loose = loose_records(folder, study)
    if loose and not check:
        records = stored(folder) | {path.relative_to(folder): record for path, record in loose.items()}
        write_store(folder / STORE, records.values())
        for path in loose:
            path.unlink()
    return list(loose)


def present(records: Sequence[Record]) -> list[Record]:
    """The records of the study's present settings."""
    return [record for record in records if OLDER not in record]


def named_study(record: Any) -> str | None:
    """The study that the content of a file names; None if it names none."""
    name = record.get("study") if isinstance(record, dict) else None
    return name if isinstance(name, str) else None


def check_record(path: Path, record: Any, folder: Path, study: Study) -> None:
    """UserError unless the file `path` below `folder` is a whole record of the cell whose place it has."""

    def refuse(what: str) -> None:
        raise UserError(f"{shown_path(path)} {what}; move it away to measure its cell again")

    named = named_study(record)
    if named is None:
        refuse(f"is not a record of the study {study.name}")
    if named != study.name:
        raise UserError(
            f"{shown_path(path)} is a record of the study {named}, not of {study.name}; "
            f"choose another --out, or if {named}.yaml was renamed, give it that name again"
        )
    cell = record.get("cell")
    if not _is_cell(cell, study):
        refuse(f"has no cell with a choice of {', '.join(study.axes)} and a seed")
    place = folder / record_path(record)
    if path != place:
        refuse(f"is not in the place of its cell, {shown_path(place)}")
    try:
        SHAPE.validate_python(record, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = "is missing" if first["type"] == "missing" else f"is {first['input']!r:.50}"
        refuse(f"is not a complete record: {'.'.join(map(str, first['loc']))} {wrong}")
    if not (study.start or study.data) and settings_mark(record) != record[FINGERPRINT]:
        refuse("was edited: its settings are not those of its fingerprint")
    if "tuning" in cell:
        return  # which may have diverged
    for keys, value in _values(record):
        if isinstance(value, float) and not math.isfinite(value):
            refuse(f"is not a complete record: {'.'.join(keys)} is {value}")
    for _, figure in study.figures():
        values = (follow(section, figure.path) for section in sections(record))
        value = next((one for one in values if one is not None), None)
        if value is not None and not isinstance(value, int | float):
            refuse(f"is not a complete record: {'.'.join(figure.path)} is {value!r:.50}, not a number")


def _is_cell(cell: Any, study: Study) -> bool:
    if not isinstance(cell, dict) or {*cell} - {"tuning"} != {*study.axes, "seed"}:
        return False
    tuning, seed = cell.get("tuning", {}), cell["seed"]
    texts = [cell[name] for name in study.axes]
    return (
        isinstance(seed, int)
        and not isinstance(seed, bool)
        and isinstance(tuning, dict)
        and len(tuning) == ("tuning" in cell)
        and all(isinstance(text, str) for text in (*texts, *tuning.values()))
    )


def settings_mark(record: Record) -> str:
    """The fingerprint of the settings in a record: its own, unless that covers a start or named data."""
    return fingerprint([record["settings"], record["own_flags"]])


def _values(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Everything in nested mappings and lists, with its path."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _values(one, (*keys, str(key)))
    elif isinstance(value, list):
        for one in value:
            yield from _values(one, keys)
    else:
        yield keys, value


def best_records(best: Best | None, records: Sequence[Record]) -> list[Record]:
    """The records of the best choice, marked with the values tried; all of them without `best`.

    Raises UserError where no record has the figure that decides.
    """
    if best is None:
        return list(records)
    kept = []
    for group in grouped(records, lambda record: other_choices(record["cell"], best.axis)).values():
        by_choice = grouped(group, lambda record: str(record["cell"][best.axis]))
        means = _means(best, by_choice)
        if means:
            chosen = max(means, key=lambda choice: means[choice])
            kept += [{**record, "best": sorted(means)} for record in by_choice[chosen]]
    if records and not kept:
        raise UserError(f"best: {best.by} is of {not_measured(best.figure, records[0])}")
    return kept


def _means(best: Best, by_choice: Mapping[str, Sequence[Record]]) -> dict[str, float]:
    """The mean of each choice over the seeds that all choices have, or over its own if they share none."""
    values = {
        choice: {one["cell"]["seed"]: value for one in records if (value := best.figure(one)) is not None}
        for choice, records in by_choice.items()
    }
    values = {choice: by_seed for choice, by_seed in values.items() if by_seed}
    common = set.intersection(*map(set, values.values())) if values else set()
    means = {}
    for choice, by_seed in values.items():
        compared = [by_seed[seed] for seed in common or by_seed]
        means[choice] = best.order(statistics.mean(compared))
    return means


def best_note(best: Best | None, records: Sequence[Record]) -> str:
    """A sentence on how `best` was chosen; empty without `best`."""
    if best is None:
        return ""
    figure = ".".join(best.figure.path)
    tried = sorted({choice for record in records for choice in record["best"]})
    counts = {len(record["best"]) for record in records}
    some = f"; a row has tried {min(counts)} to {max(counts)} of them" if len(counts) > 1 else ""
    choice = f"the choice with the {best.by} mean {figure} over the seeds that all have"
    return f"Of {best.axis} ({', '.join(tried)}{some}): {choice}."


def other_choices(cell: Mapping[str, Any], axis: str) -> tuple[str, ...]:
    """A cell's choices without the one of `axis`."""
    return tuple(str(value) for name, value in cell.items() if name not in (axis, "seed"))
