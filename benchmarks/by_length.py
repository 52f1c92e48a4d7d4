"""Tables, curves and promises by length, from the records of the cost benchmarks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.sequence_methods import SequenceMethod
from pipeline.methods import Method
from pipeline.reports.cost_records import Cell, cell
from pipeline.reports.plots import Curve
from pipeline.reports.tables import markdown_table

Results = dict[str, Any]
Value = Callable[[Cell], float]
Looks = Mapping[str, Method | SequenceMethod]
NOT_MEASURED = "not measured"


def shown(found: Cell | None, show: Callable[[Cell], str], words: Mapping[str, str] | None = None) -> str:
    """A cell of a table; `words` says how a status reads, `NOT_MEASURED` among them, a dash by default."""
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
    corner: str = "",
    suffix: str = "",
    words: Mapping[str, str] | None = None,
    more: Sequence[Sequence[str]] = (),
) -> str:
    """A title and a table: a row for each architecture, then `more`; a column for each length or place.

    `suffix` follows the names of the rows.
    """
    places = places or results["settings"]["lengths"]
    rows = [
        [looks[name].label + suffix, *(shown(cell(results, kind, name, at), show, words) for at in places)]
        for name in results["settings"]["architectures"]
    ]
    return f"{title}\n\n" + markdown_table([corner, *(f"{at:,}" for at in places)], [*rows, *more])


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
            style = look.style if isinstance(look, SequenceMethod) else "-"
            found.append(Curve(look.label, look.color, list(known), y, style))
    return found


def ratio(above: Cell | None, below: Cell | None, value: Value) -> float | None:
    """`value` of one cell over that of another; None where one was not measured."""
    if above is None or below is None or "ok" not in {above.status} & {below.status}:
        return None
    return value(above) / value(below)


@dataclass(frozen=True)
class Verdict:
    """A promise about cost, and what was measured: `ratio` is None where a part is missing."""

    promise: str
    ratio: float | None
    most: float

    def __str__(self) -> str:
        if self.ratio is None:
            return f"not measured: {self.promise}"
        met = "met" if self.ratio <= self.most else "NOT MET"
        return f"{met}: {self.promise}; measured {self.ratio:.2f}, allowed {self.most}"

    def short(self) -> str:
        """The figure, for a table whose header has the promise."""
        if self.ratio is None:
            return NOT_MEASURED
        return f"{self.ratio:.2f}" if self.ratio <= self.most else f"{self.ratio:.2f}, NOT MET"
