"""Fine-tuning on GLUE: the flags of fairseq-train that follow from a prepared task."""

import math
from collections.abc import Sequence
from pathlib import Path

from lab.data.prepared import read_manifest
from lab.errors import UserError
from lab.glue_tasks import glue_task
from lab.run.recipe import Experiment, option, shared_batch

WARMUP_SHARE = 0.06
"""Share of all updates, as in fairseq's RoBERTa recipe."""
REPORTS = {
    "accuracy": ([], "accuracy"),
    "f1": (["--report-acc-and-f1"], "f1"),
    "matthews": (["--report-mcc"], "mcc"),
    "pearson": (["--regression-target", "--report-pearson-and-spearman"], "pearson"),
}
"""The flag of fairseq's criterion for a metric, and the name under which it reports that metric."""


def data_flags(folder: Path | None, experiment: Experiment, flags: Sequence[str]) -> list[str]:
    """Classes, metric and length of the training of an experiment with `flags`; none for unprepared data.

    The updates are as many as the epochs have, also where an update takes several batches, or --max-update if
    that is fewer.
    """
    manifest = read_manifest(folder) if folder else None
    if manifest is None or "task" not in manifest:
        return []
    task, given = glue_task(manifest["task"]), [*experiment.flags(), *flags]
    examples = {split: entry["examples"] for split, entry in manifest["splits"].items()}
    batch, epochs = (whole_number(given, flag) for flag in ("--batch-size", "--max-epoch"))
    batches = math.ceil(examples["train"] / batch)
    steps = batches_an_update(experiment, flags)
    steps += steps[-1:] * (epochs - len(steps))  # as in fairseq, the last value holds from then on
    whole = sum(math.ceil(batches / count) for count in steps[:epochs])
    asked = option(given, "--max-update") or ""
    updates = min(whole, int(asked)) if asked.isdecimal() and int(asked) else whole
    reports, metric = REPORTS[task.metrics[0]]
    words = [*reports, "--num-classes", str(task.classes), "--best-checkpoint-metric", metric]
    words += ["--max-update", str(updates), "--total-num-update", str(updates)]
    words += ["--warmup-updates", str(round(WARMUP_SHARE * updates))]
    if task.is_regression:
        words += ["--batch-size-valid", str(valid_batch(examples["valid"], batch))]
    return words


def whole_number(given: Sequence[str], flag: str) -> int:
    """The value of a flag; UserError if it is not a whole number of 1 or more."""
    [value] = whole_numbers([option(given, flag) or ""], flag)
    return value


def whole_numbers(words: Sequence[str], flag: str) -> list[int]:
    """The values of a flag; UserError if one is not a whole number of 1 or more."""
    for word in words:
        if not word.isdecimal() or int(word) < 1:
            raise UserError(f"{flag} is {word!r}; give a whole number of 1 or more")
    return [int(word) for word in words]


def batches_an_update(experiment: Experiment, flags: Sequence[str]) -> list[int]:
    """Batches per update, epoch by epoch: the user's value, else the YAML's."""
    flag = "--update-freq"
    given = option(flags, flag)
    if given is None:
        return shared_batch(experiment, 1)[0]
    return whole_numbers(given.split(","), flag)


def valid_batch(examples: int, largest: int) -> int:
    """Dev examples in a batch such that the last has two: fairseq takes the correlation of each batch."""
    for size in range(largest, 1, -1):
        if examples % size != 1:
            return size
    raise UserError("the task has a single dev example, for which no correlation is defined")
