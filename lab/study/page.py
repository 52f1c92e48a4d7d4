"""The page of a study: question, answer, tables with the papers' rows, verdicts, pictures, notes."""

import json
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import TextWrapper
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from PIL import Image

from lab.data.prepared import same_data
from lab.errors import MALFORMED, UserError, check_known
from lab.files import (
    FINGERPRINT,
    RESULTS,
    fingerprint,
    is_generated,
    marked,
    renewed,
    run_lock,
    shown_path,
)
from lab.measure import MEASURES
from lab.methods import color_of, performer_note
from lab.publish.tables import (
    Extras,
    RecordGroup,
    either,
    finite,
    grouped,
    markdown_table,
    note_of_seed,
    of_first_seed,
    over_seeds,
    seed_of,
    sessions_sentence,
)
from lab.run.recipe import given_settings
from lab.store import STORE, record_path, stored
from lab.study.cells import Cell, Plan
from lab.study.declaration import plotted_by
from lab.study.records import (
    OLDER,
    all_records,
    best_note,
    best_records,
    gather,
    named_study,
    other_choices,
    read_files,
    settings_mark,
)
from lab.study.schema import (
    GIVEN,
    STUDIES,
    Record,
    Study,
    by_choices,
    not_measured,
    numbers,
    parse_expression,
)
from lab.study.table import NONE, verdicts, write_table
from lab.study.tuning import is_tuned_as_now, with_all_tried

PAGE = "README.md"
LINES = TextWrapper(120, break_long_words=False, break_on_hyphens=False)
"""Lines of the prose of a page."""
LOOK = 4
"""Version of the pictures' look; a higher number redraws all of them."""
SECONDS_TO_WRITE = 60
"""How long to wait for another process that publishes into the folder."""
NOT_FILLED_IN = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)


def groups_of(study: Study, records: Sequence[Record]) -> dict[tuple[str, ...], list[Record]]:
    """The records by the axes that no table has as rows, such as the preset; each group has its tables.

    The groups stand in the order of the YAML's choices, those that it does not name at the end.
    """
    axes = axes_of_groups(study)
    return by_choices(records, axes, [list(study.axes[axis].choices) for axis in axes])


def group_of(study: Study, cell: Mapping[str, Any]) -> tuple[str, ...]:
    """The group of a cell with these choices."""
    return tuple(str(cell[axis]) for axis in axes_of_groups(study))


def axes_of_groups(study: Study) -> list[str]:
    """The axes that no table has as rows."""
    rows = {axis for spec in study.tables for axis in spec.rows}
    rows |= {study.best.axis} if study.best else set()
    return [axis for axis in study.axes if axis not in rows]


def title_of(study: Study, group: Sequence[str]) -> str:
    """The labels of a group's choices."""
    axes = (study.axes[axis] for axis in axes_of_groups(study))
    return ", ".join(axis.label(name) for axis, name in zip(axes, group, strict=True))


@dataclass(frozen=True)
class Answer:
    """Figures and verdicts of the records, for the words of an answer.

    A row is named by choices joined by "/", as in a claim, with that of the preset where there are several.
    """

    study: Study
    records: Sequence[Record]

    def of(self, row: str) -> list[Record]:
        """The records of a row; NotMeasured if there are none, UserError if it names no cell or several."""
        axes, named = self.study.axes, row.split("/")
        known = {name for axis in axes.values() for name in axis.choices}
        found = [
            one for one in self.records if Counter(named) <= Counter(str(one["cell"][name]) for name in axes)
        ]
        if not found and (not all(axis.closed for axis in axes.values()) or known.issuperset(named)):
            raise NotMeasured(row)
        apart = [name for name in axes if not self.study.best or name != self.study.best.axis]
        if len({tuple(one["cell"][name] for name in apart) for one in found}) != 1:
            raise UserError(
                f"{self.study.path}: answer: {row} names no row, or several; name one choice of each axis"
            )
        return found

    def values(self, figure: str, row: str) -> list[float]:
        """A figure of the seeds of a row."""
        expression, records = parse_expression(figure, f"{self.study.path}: answer"), self.of(row)
        if not (values := list(numbers(expression, records))):
            raise UserError(f"{self.study.path}: answer: {not_measured(expression, records[0])}")
        return values

    def value(self, figure: str, row: str) -> float:
        """The median of a figure over the seeds of a row."""
        return statistics.median(self.values(figure, row))

    def median(self, figure: str, row: str, form: str) -> str:
        """The median as text."""
        return format(self.value(figure, row), form)

    def highest(self, figure: str, row: str, form: str) -> str:
        """The highest of the seeds as text."""
        return format(max(self.values(figure, row)), form)

    def change(self, figure: str, row: str, other: str) -> str:
        """How far one row's median is from another's: "12 % below"."""
        ratio = self.value(figure, row) / self.value(figure, other)
        return f"{100 * abs(ratio - 1):.0f} % {'below' if ratio < 1 else 'above'}"

    def points(self, figure: str, row: str, other: str, form: str = ".1f") -> str:
        """The difference of two medians: "1.2 above"."""
        difference = self.value(figure, row) - self.value(figure, other)
        return f"{abs(difference):{form}} {'below' if difference < 0 else 'above'}"

    def ranked(self, figure: str) -> list[str]:
        """The labels of the first table's rows that have the figure, lowest median first."""
        expression = parse_expression(figure, f"{self.study.path}: answer")
        spec, medians = self.study.tables[0].whole(), {}
        for key, records in spec.rows_of(self.records).items():
            if values := list(numbers(expression, records)):
                medians[spec.label(key)] = statistics.median(values)
        return sorted(medians, key=medians.__getitem__)

    def verdict(self, says: str, group: str = "") -> str:
        """The outcome of the claim with these words, in the group named by a choice."""
        for name, records in groups_of(self.study, self.records).items():
            for claim, verdict in verdicts(self.study, records) if not group or group in name else ():
                if claim.says == says:
                    return verdict.outcome
        check_known(
            says, [claim.says for claim in self.study.claims], f"{self.study.path}: answer: no claim {says!r}"
        )
        raise NotMeasured(group or says)


class NotMeasured(Exception):
    """An answer names a row that has no records yet."""


def write_answer(study: Study, records: Sequence[Record]) -> str:
    """The question, the answer, and the number of the papers' claims by verdict.

    The answer is filled in like notes; until all of its rows are measured, a sentence replaces it.
    """
    known = Answer(study, [record for record in records if OLDER not in record])
    names = ("median", "highest", "change", "points", "ranked", "verdict")
    words = {name: getattr(known, name) for name in names}
    try:
        answer = fill_in(study, "answer", words, records[0])
    except NotMeasured as error:
        answer = f"There is no answer yet: {error} has not been measured."
    groups = groups_of(study, records).values()
    found = Counter(one.outcome for group in groups for _, one in verdicts(study, group))
    counted = ", ".join(f"{number} {outcome}" for outcome, number in sorted(found.items()))
    claims = f"Claims of the papers: {counted}." if counted else ""
    return "\n\n".join(filter(None, [study.asks, answer, claims]))


def write_notes(study: Study, records: Sequence[Record]) -> str:
    """The notes of the YAML, filled in with the settings of the first record; jinja2's syntax.

    Since the YAML may be somebody else's, notes see only copies of strings, numbers, lists and mappings.
    """
    first = records[0]
    known = {
        "cell": first["cell"],
        "settings": given_settings(first),
        "found": first["found"],
        "records": records,
        "training": first["training"],
        "data": first["data"] or {},
        "flags": f" with {' '.join(first['flags'])}" if first["flags"] else "",
        "over_seeds": over_seeds(records),
        "updates": either(f"{n:,}" for n in sorted({record["training"]["updates"] for record in records})),
    }
    return fill_in(study, "notes", json.loads(json.dumps(known, default=str)), first)


def fill_in(study: Study, key: str, known: Mapping[str, Any], first: Record) -> str:
    """A template of the YAML, rendered in jinja2's sandbox; UserError if that fails."""
    try:
        sandbox = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
        return refilled(sandbox.from_string(getattr(study, key)).render(known).strip())
    except NOT_FILLED_IN as error:
        raise UserError(
            f"{study.path}: {key} cannot be filled in from the record {record_path(first)}: {error}"
        ) from None


def refilled(text: str) -> str:
    """Markdown whose paragraphs have even lines again after figures were filled in; other parts stay."""
    parts = re.split(r"\n(?:[ \t]*\n)+", text)
    is_prose = lambda part: not re.search(r"^(\s|[-*+>#|]|```|\d+[.)] )", part, re.MULTILINE)  # noqa: E731
    return "\n\n".join(LINES.fill(part) if is_prose(part) else part for part in parts)


def write_group(
    study: Study, name: tuple[str, ...], records: Sequence[Record], pictures: Iterable[str] = ()
) -> str:
    """Tables, verdicts, pictures and notes of one group."""
    heading = [f"## {title_of(study, name)}"] if name else []
    tables = [write_table(spec, records, study.baselines) for spec in study.tables if spec.rows_of(records)]
    extra = extras_of(study).tables(section_of(study, records))
    rows = [
        [one.says, one.where, found.paper, found.outcome, found.effect]
        for one, found in verdicts(study, records)
    ]
    header = ["claim of the paper", "where", "paper", "verdict", "here"]
    claims = markdown_table(header, rows, figures=False) if rows else ""
    methods = {name for record in records for name in record["cell"].values() if isinstance(name, str)}
    notes = [
        write_notes(study, records),
        best_note(study.best, records),
        *performer_note(methods, any("--performer-paper" in one["own_flags"] for one in records)),
        sessions_sentence(records),
    ]
    results = [*tables, note_of_older(records), *extra, claims, tuned_table(study, records)]
    return "\n\n".join(filter(None, [*heading, *results, *pictures, *notes]))


def tuned_table(study: Study, records: Sequence[Record]) -> str:
    """The values that tuning tried for each row and those it chose; empty without tuning."""
    tuned = [record for record in records if "tuned" in record]
    if not tuned:
        return ""
    one, spec, lines, runs = tuned[0]["tuned"], study.tables[0].whole(), [], 0
    values = list(dict.fromkeys(value for record in tuned for value in record["tuned"]["tried"]))
    with suppress(ValueError):  # words have no order
        values.sort(key=float)
    for key, group in spec.rows_of(tuned).items():
        found = group[0]["tuned"]
        scores = [
            NONE if score is None else f"{score:.4g}{' *' if value == found['chosen'] else ''}"
            for value, score in ((value, found["tried"].get(value)) for value in values)
        ]
        runs += len(found["tried"])
        lines.append([spec.label(key), *scores])
    updates = f" of {one['updates']:,} updates" if "updates" in one else ""
    title = (
        f"Choosing {one['setting']} by {one['by']} in {runs} runs{updates} of the first seed; "
        '"*": the value that was taken.'
    )
    return f"{title}\n\n{markdown_table(['', *values], lines)}"


def write_page(
    study: Study, records: Sequence[Record], pictures: Iterable["Picture"] = (), closing: str = ""
) -> str:
    """The whole page in Markdown, with links to its pictures; `closing` is its last line."""
    links = grouped(pictures, lambda picture: picture.group)
    parts = [
        write_group(study, name, group, [picture.link for picture in links.get(name, ())])
        for name, group in groups_of(study, records).items()
    ]
    opening = list(filter(None, [f"# {study.about}", write_answer(study, records)]))
    return marked("\n\n".join([*opening, *parts, *filter(None, [closing])]) + "\n")


def how_to_train(study: Study, out: Path) -> str:
    """The last line of a committed page; empty for a study of the user's own, and in another folder."""
    if study.path.parent != STUDIES or out.absolute() != RESULTS / study.name:
        return ""
    how_long = "[how long](../../docs/studies.md#how-long-a-study-takes)"
    return f"To train these cells yourself: `scripts/study.sh {study.name}` ({how_long})."


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


def shown_records(study: Study, out: Path) -> list[Record]:
    """The records in `out` from which tables and verdicts are made; with `best`, only the best choice's."""
    records = without_outdated(study, with_all_tried(all_records(out, study)))
    check_one_setting(study, records, out)
    return best_records(study.best, records)


def without_outdated(study: Study, records: Sequence[Record]) -> list[Record]:
    """The records with the study's present settings; older ones only where a row has no present record.

    The latter are marked as `OLDER`: a table names them, and no verdict counts them. Of a tuned row only the
    records with the value of its first seed are present ones: tuning may later have chosen another.
    """
    best, found = study.best.axis if study.best else "", []
    for group in grouped(records, lambda record: other_choices(record["cell"], best)).values():
        current = [record for record in group if is_current(study, record)]
        chosen = chosen_in(min(current, key=seed_of)) if current else None
        current = [record for record in current if chosen_in(record) == chosen]
        found += current or [{**record, OLDER: True} for record in group]
    return found


def chosen_in(record: Record) -> str | None:
    """The value of the tuned setting; None if the record is of a cell that was not tuned."""
    return record.get("tuned", {}).get("chosen")


def is_current(study: Study, record: Record) -> bool:
    """Whether a record was tuned, trained and measured as the study says now."""
    cell = record["cell"]
    try:
        choices = tuple(axis.choice(cell[name]) for name, axis in study.axes.items())
    except UserError:  # a choice that the study no longer has
        return False
    plan = Plan(study, Path(), flags=tuple(record["flags"]))
    start_seed = record.get("start", {}).get("seed")
    now = Cell(plan, choices, cell["seed"], chosen=chosen_in(record), start_seed=start_seed)
    tuned = now.tuned_axis if now.is_tuned else None
    if not now.exists() or record.get("tuned", {}).get("setting") != tuned:
        return False
    if tuned and not is_tuned_as_now(study.tune, record["tuned"]):
        return False
    if any(record.get(key, value) != value for key, value in now.measurement().items()):
        return False
    # The fingerprint includes that of a checkpoint that the command named, which may not be here.
    named = study.start == GIVEN or "seed" not in record.get("start", {"seed": None})
    same = named or record[FINGERPRINT] == now.fingerprint()
    return same and settings_mark(record) == fingerprint([now.experiment.settings, now.own_flags()])


def note_of_older(records: Sequence[Record]) -> str:
    """A sentence that names the rows of earlier settings; empty if there are none."""
    older = grouped([one for one in records if OLDER in one], lambda one: str(record_path(one).parent))
    if not older:
        return ""
    rows = ", ".join(sorted(older))
    return f"Measured with earlier settings of this study, and counted in no verdict: {rows}."


@contextmanager
def explained_records(study: Study, records: Sequence[Record], out: Path) -> Iterator[None]:
    """UserError where a page or its pictures miss a figure; it names the record, else the study's YAML."""
    try:
        yield
    except UserError:
        raise
    except MALFORMED as error:
        said = f"{type(error).__name__}: {error}"
        bad = [record for record in records if not _makes_a_page(study, record)]
        first = shown_path(out / record_path((bad or records)[0]))
        if len(bad) == len(records) or not bad:
            raise UserError(
                f"{study.path}: the page cannot be made of its records, such as {first} ({said}); check "
                "baseline, plot and extras, or move the records away to measure their cells again"
            ) from error
        raise UserError(
            f"{first} lacks figures that the page shows, or has them in another form ({said}); move it away "
            "to measure its cell again"
        ) from error


def _makes_a_page(study: Study, record: Record) -> bool:
    """Whether a page and pictures can be made of a record alone."""
    try:
        write_page(study, [record])
        with TemporaryDirectory() as folder:
            for picture in pictures_of(study, [record], Path(folder)):
                picture.draw(picture.path)
    except MALFORMED:
        return False
    return True


def publish(study: Study, out: Path, check: bool = False) -> list[Path]:
    """Bring the page, the pictures and the store in `out` up to date with the records; returns stale files.

    With `check`, it only reports them. Processes publish into a folder one after another.
    """
    stale = _publish(study, out, check=True)
    if check or not stale:
        return stale
    with run_lock(out, SECONDS_TO_WRITE, "--out"):
        return _publish(study, out, check=False)


def _publish(study: Study, out: Path, check: bool) -> list[Path]:
    gathered = gather(out, study, check) if is_published(out) else []
    records = shown_records(study, out)
    if not records:
        return []
    with explained_records(study, records, out):
        pictures = pictures_of(study, records, out)
        check_replaceable(study, [out / PAGE, *(picture.path for picture in pictures)])
        text = write_page(study, records, pictures, how_to_train(study, out))
        old = [picture for picture in pictures if not picture.is_current()]
        if not check:
            for picture in old:
                picture.draw(picture.path)
        return [*renewed({out / PAGE: text}, check), *(picture.path for picture in old), *gathered]


def is_published(out: Path) -> bool:
    """Whether the records of a folder belong in a store: it has one, or is one of the repository's."""
    return (out / STORE).is_file() or out.absolute().is_relative_to(RESULTS)


def check_replaceable(study: Study, paths: Iterable[Path]) -> None:
    """UserError where the page of another study, or a file that was not generated, would be replaced."""
    for path in paths:
        if path.name == PAGE and (other := other_study(study, path)):
            raise UserError(f"{path} is the page of the study {other}; choose another --out")
        if os.path.lexists(path) and not is_generated(path):
            raise UserError(
                f"{path} was not written by scripts/study.sh, which needs that name; move it "
                "away, or choose another --out"
            )


def other_study(study: Study, page: Path) -> str | None:
    """The study that a page with another title is about, by the records beside it; None if it is this one."""
    if not is_generated(page) or f"\n# {study.about}\n" in page.read_text(encoding="utf-8"):
        return None
    loose = [record for _, record in read_files(page.parent)]
    records = [*loose, *stored(page.parent).values()]
    names = {named_study(record) for record in records} - {None, study.name}
    return min(names, default=None)


def picture_paths(study: Study, groups: Iterable[tuple[str, ...]], out: Path) -> list[Path]:
    """Where pictures of the groups of records may go."""
    titles = ["curves", *extras_of(study).pictures]
    return [out / f"{'-'.join([*name, title])}.png" for name in groups for title in titles]


def data_name(study: Study, record: Record) -> str:
    """The data folder that the study or the record's YAML names; empty for a task that draws its own."""
    if study.data:
        return study.data.format(**record["cell"])
    return str((record["settings"].get("task") or {}).get("data") or "")


def check_one_setting(study: Study, records: Sequence[Record], out: Path) -> None:
    """UserError for records that no table can join.

    Those have other flags of the user, started from other checkpoints that he named, or have other data of
    one name. Only flags and start of a future record are known.
    """
    started = [one["start"] for one in records if "start" in one]
    if len({"" if "seed" in one else one["fingerprint"] for one in started}) > 1:
        raise UserError(
            f"{shown_path(out)} holds cells that started from different checkpoints; give each its own --out"
        )
    if len({tuple(record["flags"]) for record in records}) > 1:
        raise UserError(
            f"{shown_path(out)} holds cells with different flags; give each setting its own --out"
        )
    measured = [record for record in records if "settings" in record]
    for name, group in grouped(measured, partial(data_name, study)).items():
        if name and any(not same_data(one["data"], group[0]["data"]) for one in group):
            other = next(one for one in group if not same_data(one["data"], group[0]["data"]))
            raise UserError(
                f"{shown_path(out)} holds cells of different {name}, such as that of {record_path(other)}; "
                "give each its own --out"
            )


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
