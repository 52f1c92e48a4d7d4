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
        """The time of a cell; None if nothing has run yet."""
        alike = [record for record in self.records if _choices(record) == cell.values]
        speeds = [
            one["training"]["seconds"] / max(1, one["training"]["updates"]) for one in alike or self.records
        ]
        return statistics.median(speeds) * cell.updates() if speeds else None

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
