"""GLUE: the flags that follow from a prepared task, and the table beside the papers' rows."""

import math
from collections.abc import Sequence

from lab.data.preparation import read_manifest
from lab.errors import UserError
from lab.glue_tasks import glue_task
from lab.publish.glue import write_table
from lab.run.recipe import option, shared_batch
from lab.study.cells import Cell
from lab.study.records import Record
from lab.study.schema import Study

WARMUP_SHARE = 0.06
"""Of all updates, as in fairseq's RoBERTa recipe."""
REPORTS = {
    "accuracy": ([], "accuracy"),
    "f1": (["--report-acc-and-f1"], "f1"),
    "matthews": (["--report-mcc"], "mcc"),
    "pearson": (["--regression-target", "--report-pearson-and-spearman"], "pearson"),
}
"""What fairseq's criterion must be asked for, and the name under which it reports a metric."""


def data_flags(cell: Cell) -> list[str]:
    """Classes, metric and length of the training on a task; none before it is prepared.

    The updates are those of the epochs, also where each takes several batches, or of --max-update if that is
    fewer.
    """
    folder = cell.data_folder()
    manifest = read_manifest(folder) if folder else None
    if manifest is None or "task" not in manifest:
        return []
    task, given = glue_task(manifest["task"]), [*cell.experiment.flags(), *cell.own_flags()]
    examples = {split: entry["examples"] for split, entry in manifest["splits"].items()}
    batch, epochs = (whole_number(given, flag) for flag in ("--batch-size", "--max-epoch"))
    batches = math.ceil(examples["train"] / batch)
    steps = batches_an_update(cell)
    steps += steps[-1:] * (epochs - len(steps))  # fairseq: those of the last epoch named hold from then on
    whole = sum(math.ceil(batches / count) for count in steps[:epochs])
    asked = option(given, "--max-update") or ""
    updates = min(whole, int(asked)) if asked.isdecimal() and int(asked) else whole
    flags, metric = REPORTS[task.metrics[0]]
    words = [*flags, "--num-classes", str(task.classes), "--best-checkpoint-metric", metric]
    words += ["--max-update", str(updates), "--total-num-update", str(updates)]
    words += ["--warmup-updates", str(round(WARMUP_SHARE * updates))]
    if task.is_regression:
        words += ["--batch-size-valid", str(valid_batch(examples["valid"], batch))]
    return words


def whole_number(given: Sequence[str], flag: str) -> int:
    """The value of a flag; UserError if it is no whole number of 1 or more."""
    [value] = whole_numbers([option(given, flag) or ""], flag)
    return value


def whole_numbers(words: Sequence[str], flag: str) -> list[int]:
    """The values of a flag; UserError if one is no whole number of 1 or more."""
    for word in words:
        if not word.isdecimal() or int(word) < 1:
            raise UserError(f"{flag} is {word!r}; give a whole number of 1 or more")
    return [int(word) for word in words]


def batches_an_update(cell: Cell) -> list[int]:
    """How many batches an update takes, epoch by epoch: the user's number, or else that of the YAML."""
    flag = "--update-freq"
    given = option(cell.own_flags(), flag)
    if given is None:
        return shared_batch(cell.experiment, 1)[0]
    return whole_numbers(given.split(","), flag)


def valid_batch(examples: int, largest: int) -> int:
    """Dev examples in a batch such that the last has two: fairseq takes the correlation of each batch."""
    for size in range(largest, 1, -1):
        if examples % size != 1:
            return size
    raise UserError("the task has one dev example, for which there is no correlation")


def tables(study: Study, records: Sequence[Record]) -> list[str]:
    """Every encoder's row over all tasks, and those of the papers."""
    return [write_table(records)]
