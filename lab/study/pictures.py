"""The pictures of a study's page: curves, and those that only its measure has."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from lab.files import fingerprint, is_generated
from lab.measure import MEASURES
from lab.methods import color_of
from lab.publish.tables import TIMES_NOTE, Extras, RecordGroup, finite, note_of_seed, of_first_seed
from lab.study.declaration import plotted_by
from lab.study.groups import group_of, groups_of, title_of
from lab.study.records import OLDER
from lab.study.schema import Record, Study, parse_expression

LOOK = 4
"""Version of the pictures' look; a higher number redraws all of them."""


@dataclass(frozen=True)
class Picture:
    """A picture of a group of records: `draw` writes it; `source` is the fingerprint of what it shows."""

    group: tuple[str, ...]
    path: Path
    source: str
    draw: Callable[[Path], None]

    @property
    def link(self) -> str:
        """How the page shows it."""
        return f"![{self.path.stem}]({self.path.name})"

    def is_current(self) -> bool:
        """Whether it was drawn from the records and the study as they are."""
        if not is_generated(self.path):
            return False
        with Image.open(self.path) as picture:
            return picture.info.get("Source") == self.source


def pictures_of(study: Study, records: Sequence[Record], out: Path) -> list[Picture]:
    """The pictures of a page: the curves of each group, and those that only the study's measure has.

    They show no records of earlier settings.
    """
    found, present = [], [record for record in records if OLDER not in record]
    for name, group in groups_of(study, present).items():
        draws, section = {}, section_of(study, group)
        if study.plot and any(study.plot["curves"] in one["training"]["curves"] for one in group):
            draws["curves"] = partial(draw_curves, study, group), words_of_curves(study, group)
        for title, draw in extras_of(study).drawn(section).items():
            draws[title] = partial(draw, section), words_of_extras(section)
        for title, (draw, words) in draws.items():
            path = out / f"{'-'.join([*name, title])}.png"
            source = fingerprint([study.name, group, words, LOOK])
            found.append(Picture(name, path, source, partial(draw, source)))
    return found


def words_of_curves(study: Study, records: Sequence[Record]) -> list[Any]:
    """What `draw_curves` shows besides the records: words, colours and levels."""
    spec, shown = study.tables[0].whole(), of_first_seed(records)
    methods = study.plot.get("methods", {})
    rows = [(spec.label(key), color_of(methods.get(key[0], key[0]))) for key in spec.rows_of(shown)]
    title = title_of(study, group_of(study, shown[0]["cell"]))
    return [study.plot, title, asks_of(study), rows, levels_of(study, shown[0]), *methods]


def words_of_extras(section: RecordGroup) -> list[Any]:
    """What the pictures of a measure show besides the records: choices, their colours, rows and baselines."""
    choices = [
        (axis, name, choice.label, str(choice.settings), color_of(name))
        for axis, known in section.choices.items()
        for name, choice in known.items()
        if any(record["cell"][axis] == name for record in section.records)
    ]
    return [choices, list(section.rows), section.baselines]


def extras_of(study: Study) -> Extras:
    """The tables and pictures that only the study's measure has, if its page shows them."""
    if not study.extras:
        return Extras()
    return import_module(f"lab.publish.{MEASURES[study.evaluate].extras}").EXTRAS[study.evaluate]


def section_of(study: Study, records: Sequence[Record]) -> RecordGroup:
    """One group of records as the extras of a measure see it."""
    spec = study.tables[0].whole()
    rows = {spec.label(key): group for key, group in spec.rows_of(records).items()}
    choices = {name: axis.choices for name, axis in study.axes.items()}
    baselines = {one.name: one.as_record(records[0]) for one in study.baselines}
    return RecordGroup(records, choices, rows, baselines)


def picture_paths(study: Study, groups: Iterable[tuple[str, ...]], out: Path) -> list[Path]:
    """Where pictures of the groups of records may go."""
    titles = ["curves", *extras_of(study).pictures]
    return [out / f"{'-'.join([*name, title])}.png" for name in groups for title in titles]


def draw_curves(study: Study, records: Sequence[Record], source: str, path: Path) -> None:
    """The curves of the first seed, a line for each row of the first table; a panel for each x axis."""
    from lab.publish.plots import Curve, colors_of, level_line, plot_curves  # loads matplotlib: half a second

    shown, spec = of_first_seed(records), study.tables[0].whole()
    title, panels = title_of(study, group_of(study, shown[0]["cell"])), []
    rows = spec.rows_of(shown)
    colors = colors_of(list(rows), study.plot.get("methods"))
    levels = levels_of(study, shown[0])
    for by in plotted_by(study.plot):
        curves = []
        for key, [record, *_] in rows.items():
            if points := finite(record["training"]["curves"].get(study.plot["curves"], [])):
                x, y = zip(*points, strict=True)
                x = [value * seconds_per_update(record) for value in x] if by == "seconds" else x
                y = [study.plot["factor"] * value for value in y]
                curves.append(Curve(spec.label(key), colors[key], x, y))
        if curves:  # not from 0 on, which a logarithmic axis lacks
            ends = min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves)
            curves += [level_line(name, ends, level) for name, level in levels.items()]
        panels.append((title, "training, s" if by == "seconds" else by, study.plot["y"], curves))
    asks, note, log = asks_of(study), note_of_seed(shown), study.plot.get("log", False)
    if "seconds" in plotted_by(study.plot):
        note += f" {TIMES_NOTE.capitalize()}"
    plot_curves(path, panels, asks=asks, note=note, log=log, markers=False, source=source)


def asks_of(study: Study) -> str:
    """The question above the curves."""
    return study.plot.get("asks") or study.asks or study.about


def levels_of(study: Study, record: Record) -> dict[str, float]:
    """The figure that the plot names, of each baseline that has it."""
    if not (figure := study.plot.get("baseline")):
        return {}
    read = parse_expression(figure, "plot: baseline")
    levels = {one.name: read(one.as_record(record)) for one in study.baselines}
    return {name: level for name, level in levels.items() if level is not None}


def seconds_per_update(record: Record) -> float:
    """The speed of a training, which its curves take for constant."""
    return (record["training"]["seconds"] or 0.0) / max(1, record["training"]["updates"])
