"""How many questions of associative recall each attention answers, against the size of its state."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from lab.methods import NAMED
from lab.publish.plots import GREY, Point, plot_points
from lab.publish.tables import Extras, Section, drawn_from, grouped, over_seeds
from lab.store import Record

ASKS = "Which attentions have learned to recall pairs of key and value, and how large is their state?"


def draw_state(section: Section, source: str, path: Path) -> None:
    """The share of answers against the numbers of the state: a panel for each load, a dot per attention."""
    note = f"{over_seeds(section.records).capitalize()}; {drawn_from(section.records)}"
    labels = {"x_label": "numbers in the state of one row", "y_label": "questions answered, %"}
    plot_points(path, panels_of(section), asks=ASKS, note=note, source=source, **labels)


def panels_of(section: Section) -> dict[str, list[Point]]:
    """The dots of each load, by its label.

    A load of a single attention compares nothing, and is left out unless all are.
    """
    loads = grouped(section.records, lambda record: record["cell"]["load"])
    points = {
        choice.label: points_of(section, loads[name])
        for name, choice in section.choices["load"].items()
        if name in loads
    }
    return {label: dots for label, dots in points.items() if len(dots) > 1} or points


def points_of(section: Section, records: Sequence[Record]) -> list[Point]:
    """Median and range over the seeds of each method, in the order of the YAML."""
    found, points = grouped(records, lambda record: record["cell"]["method"]), []
    for name, choice in section.choices["method"].items():
        if group := found.get(name):
            shares = [100 * one["found"]["accuracy"] for one in group]
            state = statistics.median(one["found"]["state_numbers"] for one in group)
            color = NAMED[name].color if name in NAMED else GREY
            span = (min(shares), max(shares))
            points.append(Point(choice.label, color, state, statistics.median(shares), span))
    return points


EXTRAS = {"recall": Extras(pictures={"state": draw_state})}
