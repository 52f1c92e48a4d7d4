"""What pages and pictures say of several records of a study: their seeds, machines, settings and colours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import yaml

from lab.methods import NAMED
from lab.publish.tables import where
from lab.run.recipe import as_option, is_given, option
from lab.store import Record

MEASURED = "training times are those of a machine that may have done other work."
"""How every page ends its notes."""
COLORS = (
    "#000000",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#882255",
    "#332288",
    "#999933",
    "#56B4E9",
)
STYLES = ("-", "--", ":", "-.")
Figure = Callable[[Record], Any]


@dataclass(frozen=True)
class Section:
    """The records that a section of a study's page shows.

    `choices` has, by axis and name, what the study declares for each choice (its `label` and `settings`);
    `rows` the records of each row of the first table, by the label of the row.
    """

    records: Sequence[Record]
    choices: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Sequence[Record]]


def seed_of(record: Record) -> int:
    """The seed of a cell."""
    return int(record["cell"]["seed"])


def by_seed(figure: Figure, records: Sequence[Record]) -> dict[int, float]:
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


def given_settings(record: Record) -> dict[str, dict[str, Any]]:
    """The settings of a record's YAML, with the values that its study gave instead as flags."""
    found = {group: dict(values or {}) for group, values in record["settings"].items()}
    for values in found.values():
        for key in values:
            if is_given(record["own_flags"], flag := as_option(key)):
                given = option(record["own_flags"], flag) or "--"
                values[key] = True if given.startswith("--") else number_or_word(given)
    return found


def number_or_word(text: str) -> Any:
    """The value of a flag; YAML by itself takes 1e-05 for a word."""
    try:
        return float(text) if "e-" in text else yaml.safe_load(text)
    except ValueError:
        return text


def looks_of(rows: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, str]]:
    """Colour and line style of each row: those of the method, or the next ones that no method here has."""
    named = {row: (NAMED[row[0]].color, "-") for row in rows if row[0] in NAMED}
    looks = [(color, style) for style, color in product(STYLES, COLORS)]
    free = cycle(look for look in looks if look not in named.values())
    return named | {row: next(free) for row in rows if row not in named}
