"""Markdown tables and the figures in them, and sentences on the seeds and machines of several records."""

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lab.console import number_of
from lab.run.recipe import PRECISIONS, as_option
from lab.store import Record

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Figure = Callable[[Record], Any]
TIMES_NOTE = "training times are those of a machine that may have done other work."
"""How every page ends its notes."""
MEASURED_ON = "Measured on "
"""How that paragraph begins."""


def where(record: dict[str, Any], threads: int | None = None) -> str:
    """The GPU of an `environment`, or its processor and how many threads were used."""
    threads = threads or record["threads"]
    machine = record["hardware"]
    return machine.get("gpu") or f"{machine['cpu']}, {number_of(threads, 'threads')}"


def ran_on(sessions: Sequence[dict[str, Any]], threads: int | None = None) -> str:
    """Machine, versions, dates and commits of the `environment` of each session, in one sentence."""
    last = sessions[-1]
    runs = sorted({f"{s['date']} (commit {s['commit']})" for s in sessions})
    return f"{where(last, threads)}, torch {last['versions']['torch']}, {' and '.join(runs)}."


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by `key`, in their order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def either(words: Iterable[str]) -> str:
    """The words as alternatives: "a, b or c"."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: float | None, form: str) -> str:
    """A figure as text; a dash if it is None."""
    return "–" if value is None else format(value, form)


def spread(values: Sequence[float | None], format_value: str = "{:.2f}") -> str:
    """Median and range of `values`: "1.20 (1.10 to 1.40)", or one number if they print alike.

    Missing values do not count; a dash if all are missing.
    """
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    low, middle, high = (format_value.format(x) for x in (min(known), statistics.median(known), max(known)))
    return middle if low == high else f"{middle} ({low} to {high})"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], figures: bool = True) -> str:
    """A Markdown table without a final newline; `figures` are to the right, after the first column."""
    rules = ["---", *["---:" if figures else "---"] * (len(header) - 1)]
    lines = [[cell.replace("|", r"\|") for cell in row] for row in [header, rules, *rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(frozen=True)
class RecordGroup:
    """The records that a section of a study's page shows.

    `choices` has, by axis and name, each choice as the study declares it (its `label` and `settings`); `rows`
    the records of each row of the first table, by the label of the row; `baselines` a record of each
    baseline, by its name.
    """

    records: Sequence[Record]
    choices: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Sequence[Record]]
    baselines: Mapping[str, Record]


@dataclass(frozen=True)
class Extras:
    """Extras of the page of one measure: further tables of a section, and pictures by their titles.

    `needs` says, by title, of what a picture is drawn; a section without it has no such picture.
    """

    tables: Callable[[RecordGroup], list[str]] = lambda section: []
    pictures: Mapping[str, Callable[[RecordGroup, str, Path], None]] = field(default_factory=dict)
    needs: Mapping[str, Callable[[RecordGroup], Sized]] = field(default_factory=dict)

    def drawn(self, section: RecordGroup) -> dict[str, Callable[[RecordGroup, str, Path], None]]:
        """The pictures of a section, by title."""
        return {
            title: draw
            for title, draw in self.pictures.items()
            if title not in self.needs or self.needs[title](section)
        }


def finite(points: Iterable[Sequence[Any]]) -> list[tuple[float, float]]:
    """The points of a curve without those whose figure was not a number, which a record has as None."""
    return [(x, y) for x, y in points if y is not None]


def seed_of(record: Record) -> int:
    """The seed of a cell."""
    return int(record["cell"]["seed"])


def by_seed(figure: Figure, records: Sequence[Record]) -> dict[int, float]:
    """A figure of the records that have it, by their seeds."""
    return {seed_of(record): value for record in records if (value := figure(record)) is not None}


def of_first_seed(records: Sequence[Record]) -> list[Record]:
    """The records that a picture shows."""
    seed = min(map(seed_of, records))
    return [record for record in records if seed_of(record) == seed]


def note_of_seed(shown: Sequence[Record]) -> str:
    """The note below a picture of the `shown` records, all with one seed."""
    return f"Seed {seed_of(shown[0])}; {drawn_from(shown)}"


def drawn_from(records: Sequence[Record]) -> str:
    """Dtype of the training, machines and days, for the note of a picture."""
    precisions = " and ".join(sorted(set(map(precision_of, records))))
    environments = grouped([record["environment"] for record in records], where)
    machines = (
        f"{machine} ({', '.join(sorted({one['date'] for one in group}))})"
        for machine, group in environments.items()
    )
    return f"{precisions}; {'; '.join(machines)}."


def precision_of(record: Record) -> str:
    """The dtype of the training: on a CPU, the half precision of a YAML is left out."""
    words = {*record["own_flags"], *record["flags"]}
    asked = [name for name in PRECISIONS if as_option(name) in words]
    if "gpu" in record["environment"]["hardware"]:
        asked += [name for name in PRECISIONS if (record["settings"].get("common") or {}).get(name)]
    if not asked:
        return "float32"
    return "bfloat16" if "bf16" in asked[0] else "float16"


def over_seeds(records: Sequence[Record]) -> str:
    """How a table's figures are made: the median (lowest to highest) over which seeds, or the only seed."""
    seeds = sorted({seed_of(record) for record in records})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"median (lowest to highest) over the seeds {', '.join(map(str, seeds))}"


def sessions_sentence(records: Sequence[Record]) -> str:
    """Machines, days and commits, in a sentence."""
    environments = [record["environment"] for record in records]
    machines = sorted({f"{where(one)}, {one['date']}" for one in environments})
    found = {one[key] for one in environments for key in ("commit", "measured_at") if key in one}
    commits = ", ".join(sorted(found))
    return f"{MEASURED_ON}{'; '.join(machines)} (commit {commits}); {TIMES_NOTE}"
