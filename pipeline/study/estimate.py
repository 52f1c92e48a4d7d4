"""How long the missing cells of a study will take, from the speed of those that ran."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from pipeline.study.cells import Cell
from pipeline.study.records import Record, read_records


class Pace:
    """Seconds per update in the records of a folder: of the same choices if any ran, else of all."""

    def __init__(self, folder: Path, study: str) -> None:
        self.records = [record for record in read_records(folder, study) if record["training"]["seconds"]]

    def seconds(self, cell: Cell) -> float | None:
        """The time of a cell; None if nothing has run yet.

        Its updates may follow from data that are not prepared here: then those of the same choices count, and
        without any the time cannot be known.
        """
        alike = [one["training"] for one in self.records if _choices(one) == cell.values]
        updates = cell.updates() or (statistics.median(one["updates"] for one in alike) if alike else 0)
        ran = alike or [one["training"] for one in self.records]
        if not (ran and updates):
            return None
        return statistics.median(one["seconds"] / max(1, one["updates"]) for one in ran) * updates

    def left(self, cells: Sequence[Cell]) -> float | None:
        """The time of the cells without a record file; None if it cannot be known."""
        times = [self.seconds(cell) for cell in cells if not cell.record_path.is_file()]
        known = [time for time in times if time is not None]
        return sum(known) if len(known) == len(times) else None


def _choices(record: Record) -> dict[str, str]:
    return {name: str(value) for name, value in record["cell"].items() if name != "seed"}


def in_words(seconds: float) -> str:
    """A time as a person says it."""
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"
