"""Groups of a study's records, each of which has its own tables on the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.study.schema import Record, Study, by_choices


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
