"""How many questions of associative recall each attention answers, by the number of pairs."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from lab.methods import color_of
from lab.publish.plots import GREY, Curve, plot_curves
from lab.publish.tables import Extras, RecordGroup, drawn_from, grouped, over_seeds
from lab.store import Record


def draw_pairs(section: RecordGroup, source: str, path: Path) -> None:
    """The share of answers against the number of pairs; each name is followed by the size of its state."""
    length = section.choices.get("length", {}).get(section.records[0]["cell"].get("length"))
    rows = f" in rows of {length.label}" if length else ""
    asks = f"How many pairs does each attention recall{rows}, and with how large a state?"
    drawn = f"{over_seeds(section.records).capitalize()}; {drawn_from(section.records)}"
    note = f"Behind each name: numbers in the state of one row. {drawn}"
    panel = ("", "pairs in a row", "questions answered, %", curves_of(section))
    plot_curves(path, [panel], asks=asks, note=note, log=False, doublings=True, source=source)


def curves_of(section: RecordGroup) -> list[Curve]:
    """Median and range over the seeds of each method, in the order of the YAML, then the baselines' shares.

    A baseline without shares has no curve.
    """
    found = grouped(section.records, lambda record: record["cell"]["method"])
    pairs = sorted({int(number) for one in section.records for number in one["found"]["by_pairs"]})
    curves = [
        curve_of(choice.label, color_of(name) or GREY, pairs, found[name])
        for name, choice in section.choices["method"].items()
        if name in found
    ]
    for name, baseline in section.baselines.items():
        known = [number for number in pairs if str(number) in baseline["found"].get("by_pairs", {})]
        if known:
            curves.append(Curve(name, GREY, known, [share_of(baseline, number) for number in known], ":"))
    return curves


def curve_of(label: str, color: str, pairs: Sequence[int], records: Sequence[Record]) -> Curve:
    """One method's share of answers by the number of pairs."""
    shares = [[share_of(one, number) for one in records] for number in pairs]
    state = statistics.median(one["found"]["state_numbers"] for one in records)
    low, middle, high = (list(map(of, shares)) for of in (min, statistics.median, max))
    return Curve(f"{label}, {state:,.0f}", color, pairs, middle, low=low, high=high)


def share_of(record: Record, pairs: int) -> float:
    """The questions answered in rows of that many pairs, in percent."""
    return 100 * record["found"]["by_pairs"][str(pairs)]


EXTRAS = {"recall": Extras(pictures={"pairs": draw_pairs})}
