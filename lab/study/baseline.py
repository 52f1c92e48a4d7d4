"""What guessing scores: a row of a study's tables, and which rows stand there and so have learned nothing."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lab.errors import UserError
from lab.study.notation import check_keys, check_known, number, numbers, parse_expression, row_name
from lab.study.records import Record
from lab.study.schema import Baseline

AT_BASELINE = "\\*: within the margin of the baseline, so nothing has been learned there."


def read_baseline(given: Any, where: str) -> Baseline:
    """A baseline of a YAML; UserError for what is wrong in it."""
    where = f"{where}: baseline"
    check_keys(given, ("name", "found", "margin"), where)
    if not isinstance(given.get("found"), Mapping) or not given.get("name"):
        raise UserError(f"{where}: write name and found, such as {{name: guessing, found: {{accuracy: 50}}}}")
    margins = (given.get("margin") or {}).items()
    margin = {str(path): number(value, f"{where}: margin of {path}") for path, value in margins}
    for path in margin:
        check_known(path, given["found"], f"{where}: margin has no figure {path} in found")
    return Baseline(str(given["name"]), dict(given["found"]), margin)


def at_baseline(rows: Mapping[tuple[str, ...], Sequence[Record]], baselines: Sequence[Baseline]) -> list[str]:
    """The names of the rows of which the median of some figure comes within its margin of a baseline's."""
    found = []
    for key, group in rows.items():
        for baseline in baselines:
            pseudo = baseline.as_record(group[0])
            for path, margin in baseline.margin.items():
                figure = parse_expression(path, "baseline")
                values, level = list(numbers(figure, group)), figure(pseudo)
                if values and level is not None and abs(statistics.median(values) - level) <= margin:
                    found.append(row_name(key))
    return list(dict.fromkeys(found))
