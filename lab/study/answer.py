"""The prose of a study's page: its answer and notes, filled in from the records."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import TextWrapper
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lab.errors import UserError, check_known
from lab.publish.tables import either, over_seeds
from lab.run.recipe import given_settings
from lab.store import record_path
from lab.study.groups import groups_of
from lab.study.records import present
from lab.study.schema import Record, Study, not_measured, numbers, parse_expression
from lab.study.table import verdicts

LINES = TextWrapper(120, break_long_words=False, break_on_hyphens=False)
"""Lines of the prose of a page."""
NOT_FILLED_IN = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)


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
    known = Answer(study, present(records))
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

    Records of earlier settings count only where there are no others. Since the YAML may be somebody else's,
    notes see only copies of strings, numbers, lists and mappings.
    """
    records = present(records) or records
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
