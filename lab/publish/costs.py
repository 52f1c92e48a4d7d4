"""Records of the cost benchmarks: the figures of an architecture at a length, and their machine.

Tables, curves and promises by length.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.methods import Method
from lab.publish.plots import Curve
from lab.publish.tables import markdown_table, ran_on

Results = dict[str, Any]
Looks = Mapping[str, Method]
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Cell:
    """An architecture at a length or position: samples and records of all its processes."""

    at: int
    status: str
    seconds: list[float]
    records: list[dict[str, Any]]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def peak(self) -> float:
        """The largest peak memory, in MiB."""
        return max(record["peak_bytes"] for record in self.records) / 2**20


Value = Callable[[Cell], float]


def cell(results: Results, kind: str, architecture: str, at: int) -> Cell | None:
    """The samples of `architecture` at length or position `at`, or None if it was not measured."""
    records = [
        r
        for r in results["records"]
        if r["kind"] == kind
        and r["architecture"] == architecture
        and (kind == "decoding" or r["length"] == at)
    ]
    good = [r for r in records if r["status"] == "ok"]
    if not good:
        return Cell(at, records[0]["status"], [], []) if records else None
    if kind == "decoding":
        good = [r for r in good if str(at) in r["token_seconds"]]
        seconds = [r["token_seconds"][str(at)] for r in good]
    else:
        seconds = [x for r in good for x in r["step_seconds"]]
    return Cell(at, "ok", seconds, good) if seconds else None


def precision(results: Results) -> str:
    """The dtype of the training."""
    return "bfloat16" if results["settings"].get("bf16") else "float32"


def measured_on(results: Results) -> str:
    """Machine, versions, dates and commits in one sentence."""
    return ran_on(results["sessions"], results["settings"]["threads"])


def shown(found: Cell | None, show: Callable[[Cell], str], words: Mapping[str, str] | None = None) -> str:
    """A cell of a table; `words` has the text of each status, such as `NOT_MEASURED`, by default a dash."""
    if found is not None and found.status == "ok":
        return show(found)
    words = {NOT_MEASURED: "–", **(words or {})}
    status = NOT_MEASURED if found is None else found.status
    return words.get(status, status)


def length_table(
    results: Results,
    title: str,
    looks: Looks,
    show: Callable[[Cell], str],
    *,
    kind: str = "training",
    places: Sequence[int] = (),
) -> str:
    """A title and a table: a row for each architecture, a column for each length or place."""
    places = places or results["settings"]["lengths"]
    rows = length_rows(results, looks, show, kind=kind, places=places)
    return f"{title}\n\n" + markdown_table(["", *(f"{at:,}" for at in places)], rows)


def length_rows(
    results: Results,
    looks: Looks,
    show: Callable[[Cell], str],
    *,
    kind: str = "training",
    places: Sequence[int] = (),
    words: Mapping[str, str] | None = None,
) -> list[list[str]]:
    """The label of each architecture and its cells at the lengths or `places`; `words` as in `shown`."""
    places = places or results["settings"]["lengths"]
    return [
        [looks[name].label, *(shown(cell(results, kind, name, at), show, words) for at in places)]
        for name in results["settings"]["architectures"]
    ]


def measured(
    results: Results, name: str, kind: str = "training", places: Sequence[int] = ()
) -> dict[int, Cell]:
    """The lengths, or `places`, at which an architecture could be measured."""
    found = {at: cell(results, kind, name, at) for at in sorted(places or results["settings"]["lengths"])}
    return {at: c for at, c in found.items() if c is not None and c.status == "ok"}


def curves(
    results: Results,
    looks: Looks,
    names: Sequence[str],
    value: Value,
    kind: str = "training",
    places: Sequence[int] = (),
) -> list[Curve]:
    """A curve for each architecture that was measured."""
    found = []
    for name in names:
        if known := measured(results, name, kind, places):
            look, y = looks[name], [value(c) for c in known.values()]
            found.append(Curve(look.label, look.color, list(known), y, look.style))
    return found


def ratio(above: Cell | None, below: Cell | None, value: Value) -> float | None:
    """`value` of one cell divided by `value` of another; None where one was not measured."""
    if above is None or below is None or "ok" not in {above.status} & {below.status}:
        return None
    return value(above) / value(below)


@dataclass(frozen=True)
class Goal:
    """The bound of a figure, at most or at least; `value` is None where a part of it was not measured."""

    figure: str
    value: float | None
    bound: float
    at_least: bool = False

    @property
    def wanted(self) -> str:
        """The figure and its bound."""
        return f"{self.figure}: {'at least' if self.at_least else 'at most'} {self.bound:g}"

    @property
    def outcome(self) -> str:
        """Whether it is met."""
        if self.value is None:
            return NOT_MEASURED
        met = self.value >= self.bound if self.at_least else self.value <= self.bound
        return "met" if met else "not met"

    def row(self, digits: int = 2) -> list[str]:
        """The row of a table of goals."""
        value = "–" if self.value is None else f"{self.value:.{digits}f}"
        return [self.wanted, value, self.outcome]


def goal_table(rows: Sequence[Sequence[str]]) -> str:
    """The `row`s of goals in Markdown."""
    return markdown_table(["goal", "measured", ""], rows)
