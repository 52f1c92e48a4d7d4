"""The classes of a study: axes, tables, claims, baselines, and the expressions that read a record.

A column or a claim asks a record for `[factor*]path`, nothing else. A path such as `bits_per_dimension.test`,
or `buckets.0.perplexity` for the first of a list, is looked up in the figures of the measure, then of
training, then in the whole record. A format is one of Python's for numbers, or `count`: in how many records
the value is true. declaration.py reads the YAML; docs/studies.md describes the keys.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.errors import UserError, nearest
from lab.files import ROOT
from lab.methods import label_of
from lab.publish.tables import grouped
from lab.store import Record
from lab.verdicts import Bound, accuracy_noise

STUDIES = ROOT / "configs" / "studies"
RUNS = ROOT / "runs" / "studies"
GIVEN = "given"
"""The value of `start` with which the command names the checkpoint."""
YAML = "yaml"
"""The key of a choice that changes settings of the training YAML, by group."""
NAME = re.compile(r"[\w+][\w.+-]*")
"""A choice's name, which also names a folder."""
BY = ("highest", "lowest")
TUNED_BY = {"valid_loss": min, "valid_accuracy": max}
EXPRESSION = re.compile(
    r"(?:(?P<factor>\d+(?:\.\d+)?(?:e[+-]?\d+)?)\*)?(?P<path>[A-Za-z_][\w-]*(?:\.[\w+-]+)*)"
)
FORMAT = re.compile(r",?(?:\.\d+)?[feg%]?")
COUNT = "count"
SECTIONS = ("found", "training")


@dataclass(frozen=True)
class Expression:
    """A number of a record: the value at `path` times `factor`."""

    path: tuple[str, ...]
    factor: float | None = None

    def __call__(self, record: Record) -> Any:
        """The value; None if it is missing or not a number."""
        for section in sections(record):
            value = follow(section, self.path)
            if value is not None:
                break
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            return None
        return value if self.factor is None else self.factor * value


def not_measured(figure: Expression, record: Record) -> str:
    """The message for a figure that a record lacks, with the nearest one that it has."""
    path, known = ".".join(figure.path), [*record["found"], *record["training"]]
    return f"{path}, which {record['study']} has not measured{nearest(path, known)}"


def sections(record: Record) -> list[Any]:
    """Where figures are looked up, in this order."""
    return [*(record.get(name) for name in SECTIONS), record]


def follow(value: Any, path: Iterable[str], absent: Any = None) -> Any:
    """The value at a path of nested mappings and lists, `absent` if there is none."""
    for key in path:
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            return absent
    return value


def parse_expression(text: Any, where: str) -> Expression:
    """The expression in `text`; UserError, naming the place `where`, for anything else."""
    match = EXPRESSION.fullmatch(str(text))
    if not match:
        raise UserError(f"{where}: {text!r} is not an expression; write one such as accuracy or 100*accuracy")
    factor = float(match["factor"]) if match["factor"] else None
    return Expression(tuple(match["path"].split(".")), factor)


def numbers(expression: Expression, records: Iterable[Record]) -> Iterator[float]:
    """The values of the records that have one."""
    for record in records:
        if (value := expression(record)) is not None:
            yield value


def is_same_number(first: str, second: str) -> bool:
    """Whether two words are one number, such as 3e-4 and 0.0003."""
    try:
        return float(first) == float(second)
    except ValueError:
        return False


def row_name(key: Sequence[str]) -> str:
    """How a claim names a row."""
    return "/".join(key)


@dataclass(frozen=True)
class Choice:
    """An option of an axis: its additional flags, and its word in the path of the YAML.

    `seeds` is the most seeds that it is run with, None for all of the study's; with `on_request` it runs only
    if the command names it.
    """

    name: str
    settings: dict[str, Any]
    label: str
    config: str
    seeds: int | None = None
    on_request: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis: its choices by name, or any `value` of the flag or the placeholder called like the axis."""

    name: str
    choices: dict[str, Choice]
    placeholder: bool
    closed: bool

    @property
    def usual(self) -> list[str]:
        """The choices that are run if the command names none."""
        return [name for name, choice in self.choices.items() if not choice.on_request]

    def label(self, name: str) -> str:
        """The label of a choice; the name of one that the study no longer declares."""
        return self.choices[name].label if name in self.choices else name

    def choose(self, words: Iterable[str]) -> list[Choice]:
        """The choices that `words` name; a word that several begin with, such as `norm`, names them all.

        Raises UserError for another one.
        """
        found: dict[str, Choice] = {}
        for word in words:
            group = [name for name in self.choices if name.startswith(f"{word}-")]
            names = group if group and word not in self.choices else [word]
            found.update({choice.name: choice for choice in map(self.choice, names)})
        return list(found.values())

    def choice(self, name: str) -> Choice:
        """The choice of this name, on an open axis also of an equal number; UserError if there is none."""
        if name in self.choices:
            return self.choices[name]
        if not self.closed and (equal := [known for known in self.choices if is_same_number(known, name)]):
            return self.choices[equal[0]]
        if self.closed or not NAME.fullmatch(name):
            raise UserError(f"--{self.name} {name}: there is no such choice{nearest(name, self.choices)}")
        return self.value(name)

    def value(self, word: str) -> Choice:
        """The choice of an open axis for a value that the YAML does not name."""
        settings = {} if self.placeholder else {self.name: word}
        label = label_of(word) if self.placeholder else f"{self.name} {word}"
        return Choice(word, settings, label, word)


@dataclass(frozen=True)
class Column:
    """A column: its title, the figure, and the format of a number."""

    title: str
    figure: Expression
    form: str


@dataclass(frozen=True)
class PaperColumn:
    """The column of a paper's `table`: `rows` maps our choice of the first row axis to the paper's row.

    They are in the paper's order; `key` are the columns that name one. `value` is the paper's column; with
    several row axes it may depend on the choice of the axis `by` ("" without). `average` is the paper's
    column of means over a table's axis `across`.
    """

    table: str
    key: tuple[str, ...]
    rows: dict[str, dict[str, str]]
    value: dict[str, str]
    by: str
    title: str
    average: str = ""

    def is_at(self, where: str) -> bool:
        """Whether it is of the table that a claim names, such as "Table 4" or "LLN, Table 5"."""
        paper, number = self.table.split("_")[:2]
        named, _, item = where.rpartition(", ")
        return item == f"Table {int(number[:2])}" and named.split(" ")[0].lower() in ("", paper)


def allows(only: Mapping[str, Sequence[str]], choices: Mapping[str, Any]) -> bool:
    """Whether the choice of each axis in `only` is listed there."""
    return all(choices.get(axis) in names for axis, names in only.items())


def kept_by(only: Mapping[str, Sequence[str]], records: Sequence[Record]) -> list[Record]:
    """The records whose choices `only` allows."""
    return [record for record in records if allows(only, record["cell"])]


def by_choices(
    records: Sequence[Record], axes: Sequence[str], orders: Sequence[Sequence[str]]
) -> dict[tuple[str, ...], list[Record]]:
    """The records by their choices of `axes`, in the `orders` of these; those without a place come last."""

    def place(key: tuple[str, ...]) -> list[int]:
        return [
            order.index(name) if name in order else len(order)
            for order, name in zip(orders, key, strict=True)
        ]

    found = grouped(records, lambda record: tuple(str(record["cell"][axis]) for axis in axes))
    return {key: found[key] for key in sorted(found, key=place)}


@dataclass(frozen=True)
class TableSpec:
    """A table as the YAML declares it: the axes of its rows; `only` keeps these choices of an axis, in order.

    With `across`, the last of the row axes, its choices are columns of the first figure, and `average` is the
    title of their mean. Such a table may have rows of several papers.
    """

    title: str
    rows: "dict[str, Axis]"
    columns: tuple[Column, ...]
    only: dict[str, tuple[str, ...]]
    papers: tuple[PaperColumn, ...]
    across: str = ""
    average: str = ""

    @property
    def paper(self) -> PaperColumn | None:
        """The paper whose column is compared with ours."""
        return self.papers[0] if self.papers else None

    def whole(self) -> "TableSpec":
        """The table with all choices."""
        return replace(self, only={}, papers=())

    def rows_of(self, records: Sequence[Record]) -> dict[tuple[str, ...], list[Record]]:
        """The records of each row, in the order of the axes' choices."""
        orders = [list(self.only.get(name) or axis.choices) for name, axis in self.rows.items()]
        return by_choices(kept_by(self.only, records), list(self.rows), orders)

    def label(self, key: Sequence[str], joint: str = ", ") -> str:
        """The label of a row: its choices, without axes that the table fixes to one choice.

        In an `across` table the key omits the `across` axis.
        """
        named = [
            axis.label(name)
            for axis, name in zip(self.rows.values(), key, strict=not self.across)
            if len(self.only.get(axis.name, ())) != 1
        ]
        return joint.join(named)

    def paper_figure(self, key: Sequence[str]) -> str:
        """The paper's figure beside a row, as printed; empty if there is none."""
        if self.paper is None or key[0] not in self.paper.rows:
            return ""
        choice = key[list(self.rows).index(self.paper.by)] if self.paper.by else ""
        return self.paper.rows[key[0]].get(self.paper.value.get(choice), "")

    def paper_values(self, rows: Iterable[tuple[str, ...]]) -> dict[str, float]:
        """The paper's column by row name; entries that are not numbers are left out."""
        found = {}
        for key in rows:
            with suppress(ValueError):
                found[row_name(key)] = float(self.paper_figure(key))
        return found


@dataclass(frozen=True)
class Baseline:
    """The score of guessing: figures by path, each a number or a path in a record.

    A row has learned something if each figure in `margin` is better than the baseline's by more than that
    margin, which is negative where less is better. `examples` is the size of the test set of a figure that is
    an accuracy in percent; then it must be better by more than the noise of that test set, too.
    """

    name: str
    found: dict[str, float | str]
    margin: dict[str, float] = field(default_factory=dict)
    examples: Expression | None = None

    def noise(self, level: float, records: Sequence[Record]) -> float:
        """Half the 95 % interval of the baseline's accuracy `level` on the smallest test set of `records`."""
        sizes = list(numbers(self.examples, records)) if self.examples else []
        return accuracy_noise(level, min(sizes)) if sizes else 0.0

    def as_record(self, like: Record) -> Record:
        """A record with the baseline's figures; paths are read from the record `like`."""
        found: dict[str, Any] = {}
        for path, value in self.found.items():
            if isinstance(value, str):
                value = parse_expression(value, "baseline")(like)
            *outer, last = path.split(".")
            place = found
            for key in outer:
                place = place.setdefault(key, {})
            if value is not None:
                place[last] = value
        return {"found": found}


@dataclass(frozen=True)
class Claim:
    """A paper's claim, its place in the paper, and the test: `kind`, figure, rows and bound.

    `examples` is the path of the size of the test set; with `bootstrap`, its noise is told by predictions
    in the records. `only` has the choices of an axis that the claim is about; all if the axis is not in it.
    `not_comparable` is the reason, if there is one, why the records cannot decide it.
    """

    says: str
    where: str
    kind: str
    figure: Expression
    rows: tuple[str, ...]
    bound: Bound | None
    examples: Expression | None = None
    bootstrap: bool = False
    paper: tuple[str, ...] = ()
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    not_comparable: str = ""


@dataclass(frozen=True)
class Tune:
    """How a setting is chosen before the repetitions: the best of `values` after `updates`, `by` a figure.

    With `bracket`, further values are tried by factors of two until the best is neither the least nor the
    largest. Cells with a choice that `only` does not list keep the value of their YAML.
    """

    axis: str
    values: tuple[str, ...]
    updates: int
    by: str
    bracket: bool
    only: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Best:
    """Shows only the best choice of `axis`, by the highest or lowest figure."""

    axis: str
    figure: Expression
    by: str

    def order(self, value: float) -> float:
        """The larger, the better."""
        return value if self.by == "highest" else -value


@dataclass(frozen=True)
class Study:
    """A declared experiment. `config` is the path of the YAMLs with `{axis}` in it, from the root.

    `prepare` has the script of data-prep/ and its arguments by the folder that it writes, or one of the
    name "" that writes all.
    `data` is the prepared folder in the same way, "" for the YAML's folder. `start` is the study whose runs
    the cells start from, or GIVEN. `settings` are flags of all cells. `extras`: the page has the tables and
    pictures of the measure, too.
    """

    name: str
    path: Path
    about: str
    asks: str
    config: str
    data: str
    start: str
    settings: dict[str, Any]
    keep: str
    best: Best | None
    axes: dict[str, Axis]
    seeds: int
    evaluate: str
    checkpoint: str
    tables: tuple[TableSpec, ...]
    tune: Tune | None
    prepare: dict[str, tuple[str, ...]]
    baselines: tuple[Baseline, ...]
    claims: tuple[Claim, ...]
    plot: dict[str, Any]
    answer: str
    notes: str
    extras: bool

    def figures(self) -> Iterator[tuple[str, Expression]]:
        """Every figure that the study asks a record for, and who asks for it."""
        for column in (column for spec in self.tables for column in spec.columns):
            yield f"the column {column.title!r} shows", column.figure
        for claim in self.claims:
            yield f"the claim {claim.says!r} is about", claim.figure
        for one in self.baselines:
            for word in (word for pair in one.found.items() for word in pair if isinstance(word, str)):
                yield f"the baseline {one.name!r} has", parse_expression(word, one.name)
        if self.best:
            yield "best chooses by", self.best.figure
