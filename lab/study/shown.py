"""Which records the page of a study shows: those of its present settings, if there are any."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab.data.prepared import identify, same_data
from lab.errors import UserError
from lab.files import FINGERPRINT, fingerprint, shown_path
from lab.publish.tables import grouped, seed_of
from lab.store import record_path
from lab.study.cells import Cell, Plan
from lab.study.records import OLDER, all_records, best_records, other_choices, present, settings_mark
from lab.study.schema import GIVEN, Record, Study
from lab.study.tuning import is_tuned_as_now, with_all_tried


def shown_records(study: Study, out: Path) -> list[Record]:
    """The records in `out` from which tables and verdicts are made; with `best`, only the best choice's."""
    records = kept_records(study, out)
    check_one_setting(study, records, out)
    return best_records(study.best, records)


def present_records(study: Study, out: Path) -> list[Record]:
    """The records in `out` with the study's present settings, without runs of tuning."""
    return present(kept_records(study, out))


def kept_records(study: Study, out: Path) -> list[Record]:
    """The records in `out` that `without_outdated` leaves, without runs of tuning."""
    return without_outdated(study, with_all_tried(all_records(out, study)))


def without_outdated(study: Study, records: Sequence[Record]) -> list[Record]:
    """The records with the study's present settings; older ones only where a row has no present record.

    The latter are marked as `OLDER`: a table names them, and no verdict counts them. Of a tuned row only the
    records with the value of its first seed are present ones: tuning may later have chosen another.
    """
    best, found = study.best.axis if study.best else "", []
    for group in grouped(records, lambda record: other_choices(record["cell"], best)).values():
        current = [record for record in group if is_current(study, record)]
        chosen = chosen_in(min(current, key=seed_of)) if current else None
        current = [record for record in current if chosen_in(record) == chosen]
        found += current or [{**record, OLDER: True} for record in group]
    return found


def chosen_in(record: Record) -> str | None:
    """The value of the tuned setting; None if the record is of a cell that was not tuned."""
    return record.get("tuned", {}).get("chosen")


def is_current(study: Study, record: Record) -> bool:
    """Whether a record was tuned, trained and measured as the study says now."""
    cell = record["cell"]
    try:
        choices = tuple(axis.choice(cell[name]) for name, axis in study.axes.items())
    except UserError:  # a choice that the study no longer has
        return False
    plan = Plan(study, Path(), flags=tuple(record["flags"]))
    start_seed = record.get("start", {}).get("seed")
    now = Cell(plan, choices, cell["seed"], chosen=chosen_in(record), start_seed=start_seed)
    tuned = now.tuned_axis if now.is_tuned else None
    if not now.exists() or record.get("tuned", {}).get("setting") != tuned:
        return False
    if tuned and not is_tuned_as_now(study.tune, record["tuned"]):
        return False
    if any(record.get(key, value) != value for key, value in now.measurement().items()):
        return False
    # The fingerprint includes that of a checkpoint that the command named, which may not be here.
    named = study.start == GIVEN or "seed" not in record.get("start", {"seed": None})
    same = named or record[FINGERPRINT] == now.fingerprint()
    return same and settings_mark(record) == fingerprint([now.experiment.settings, now.own_flags()])


def data_name(study: Study, record: Record) -> str:
    """The data folder that the study or the record's YAML names; empty for a task that draws its own."""
    if study.data:
        return study.data.format(**record["cell"])
    return str((record["settings"].get("task") or {}).get("data") or "")


def check_future(cells: Sequence[Cell]) -> None:
    """UserError if no page could join the records that these cells will write with those in their folder."""
    study, out = cells[0].study, cells[0].plan.out
    check_one_setting(study, [*kept_records(study, out), *map(future_record, cells)], out)


def future_record(cell: Cell) -> dict[str, Any]:
    """What is known of a cell's record beforehand: settings and data only where the data are prepared."""
    known = {"cell": cell.key, "flags": cell.plan.flags, **cell.start_mark()}
    folder = cell.data_folder()
    if folder is None or not folder.is_dir():
        return known
    return {**known, "settings": cell.experiment.settings, "data": identify(folder)}


def check_one_setting(study: Study, records: Sequence[Record], out: Path) -> None:
    """UserError for records that no table can join.

    Those have other flags of the user, started from other checkpoints that he named, or have other data of
    one name. Future records come last.
    """
    started = [one["start"] for one in records if "start" in one]
    if len({"" if "seed" in one else one["fingerprint"] for one in started}) > 1:
        raise UserError(
            f"{shown_path(out)} holds cells that started from different checkpoints; give each its own --out"
        )
    if len({tuple(record["flags"]) for record in records}) > 1:
        raise UserError(
            f"{shown_path(out)} holds cells with different flags; give each setting its own --out"
        )
    measured = [record for record in records if "settings" in record]
    for name, (first, *others) in grouped(measured, partial(data_name, study)).items():
        other = next((one for one in others if not same_data(one["data"], first["data"])), None)
        if not name or other is None:
            continue
        if "found" in other:
            raise UserError(
                f"{shown_path(out)} holds cells of different {name}, such as that of {record_path(other)}; "
                "give each its own --out"
            )
        raise UserError(
            f"{shown_path(out)} holds cells of other {name} than there are now, such as that of "
            f"{record_path(first)}; choose another --out, or move the earlier records away"
        )
