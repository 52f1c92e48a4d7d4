"""The records of finished cells: read, and what may be said of several of them."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.files import read_json
from pipeline.reports.tables import where
from pipeline.study.notation import Expression, Record

PATTERN = "**/seed*.json"
MEASURED = "training times are those of a machine that may have done other work."
"""How every page ends its notes."""


def read_records(folder: Path, study: str) -> list[Record]:
    """The records of a study's cells in `folder`, those of its tuning left out; another file is passed over.

    A file that is no JSON raises UserError.
    """
    found = (read_json(path) for path in sorted(folder.glob(PATTERN)))
    return [
        record
        for record in found
        if isinstance(record, dict)
        and record.get("study") == study
        and isinstance(record.get("cell"), dict)
        and "tuning" not in record["cell"]
    ]


def seed_of(record: Record) -> int:
    """The seed of a cell."""
    return int(record["cell"]["seed"])


def by_seed(figure: Expression, records: Sequence[Record]) -> dict[int, float]:
    """A figure of the records that have it, by their seeds."""
    return {seed_of(record): value for record in records if (value := figure(record)) is not None}


def of_first_seed(records: Sequence[Record]) -> list[Record]:
    """Those that a picture shows."""
    seed = min(map(seed_of, records))
    return [record for record in records if seed_of(record) == seed]


def note_of_seed(shown: Sequence[Record]) -> str:
    """What is printed below a picture of the `shown` records, all of a seed."""
    return f"Seed {seed_of(shown[0])}. {measured_on(shown)}"


def over_seeds(records: Sequence[Record]) -> str:
    """What the figures of a table are: median (lowest to highest) over which seeds, or the only seed."""
    seeds = sorted({seed_of(record) for record in records})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"median (lowest to highest) over the seeds {', '.join(map(str, seeds))}"


def measured_on(records: Sequence[Record]) -> str:
    """Machines, days and commits, in a sentence."""
    environments = [record["environment"] for record in records]
    machines = sorted({f"{where(one)}, {one['date']}" for one in environments})
    commits = ", ".join(sorted({one["commit"] for one in environments}))
    return f"Measured on {'; '.join(machines)} (commit {commits}); {MEASURED}"
