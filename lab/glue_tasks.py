"""The nine GLUE tasks (Wang et al. 2018, "GLUE", table 1): columns, labels, metrics and published sizes.

data-prep/glue.sh reads the files by this table; fine-tuning takes classes and metrics from it.
"""

import difflib
from dataclasses import dataclass, field

from lab.errors import UserError

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
DEV = {"train": "train", "valid": "dev", "test": "test"}


@dataclass(frozen=True)
class GlueTask:
    """One task; the keys of `files` and `sizes` are fairseq's names of its splits."""

    name: str
    sizes: dict[str, tuple[int, ...]]
    """Examples of each split as published; more than one number where releases differ."""

    sentences: tuple[str, ...] = ("sentence1", "sentence2")
    """Header of the column of each sentence, one or two."""

    label: str = "label"
    """Header of the column with the label."""

    labels: tuple[str, ...] = BINARY
    """In the order of the label dictionary: label i is class i; none if the target is a score."""

    metrics: tuple[str, ...] = ("accuracy",)
    """Some of accuracy, f1 (of class 1), matthews, pearson and spearman, in the order of the report."""

    files: dict[str, str] = field(default_factory=lambda: DEV)
    """Name of each split's file, without its ending."""

    columns: tuple[str, ...] = ()
    """The columns of train and dev where these have no header line."""

    drops_broken_rows: bool = False
    """Rows with another number of columns are left out, and empty sentences are kept."""

    highest_score: float = 0.0
    """Scores go from 0 to this; fairseq's target is their share of it."""

    @property
    def is_regression(self) -> bool:
        """Whether the target is a score."""
        return not self.labels

    @property
    def classes(self) -> int:
        """The value of fairseq's `--num-classes`."""
        return len(self.labels) or 1

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """The splits to report: MNLI has a matched and a mismatched one."""
        return tuple(split for split in self.files if split.startswith("valid"))


def _sizes(train: int, valid: int, test: int) -> dict[str, tuple[int, ...]]:
    return {"train": (train,), "valid": (valid,), "test": (test,)}


TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask(
            "CoLA",
            _sizes(8_551, 1_043, 1_063),
            sentences=("sentence",),
            metrics=("matthews", "accuracy"),
            columns=("source", "label", "mark", "sentence"),
        ),
        GlueTask("SST-2", _sizes(67_349, 872, 1_821), sentences=("sentence",)),
        GlueTask(
            "MRPC",
            _sizes(3_668, 408, 1_725),
            sentences=("#1 String", "#2 String"),
            label="Quality",
            metrics=("f1", "accuracy"),
        ),
        GlueTask(
            "STS-B",
            _sizes(5_749, 1_500, 1_379),
            label="score",
            labels=(),
            metrics=("pearson", "spearman"),
            highest_score=5.0,
        ),
        GlueTask(
            "QQP",
            {"train": (363_846, 363_849), "valid": (40_430, 40_431), "test": (390_965,)},
            sentences=("question1", "question2"),
            label="is_duplicate",
            metrics=("accuracy", "f1"),
            drops_broken_rows=True,
        ),
        GlueTask(
            "MNLI",
            {
                "train": (392_702,),
                "valid": (9_815,),
                "valid1": (9_832,),
                "test": (9_796,),
                "test1": (9_847,),
            },
            label="gold_label",
            labels=("contradiction", "entailment", "neutral"),
            files={
                "train": "train",
                "valid": "dev_matched",
                "valid1": "dev_mismatched",
                "test": "test_matched",
                "test1": "test_mismatched",
            },
        ),
        GlueTask(
            "QNLI",
            {"train": (104_743, 108_436), "valid": (5_463, 5_732), "test": (5_463, 5_740)},
            sentences=("question", "sentence"),
            labels=ENTAILMENT,
        ),
        GlueTask("RTE", _sizes(2_490, 277, 3_000), labels=ENTAILMENT),
        GlueTask("WNLI", _sizes(635, 71, 146)),
    )
}


def glue_task(name: str) -> GlueTask:
    """The task called `name`; UserError with the nearest name if there is none."""
    if name in TASKS:
        return TASKS[name]
    by_letters = {known.lower().replace("-", ""): known for known in TASKS}
    close = difflib.get_close_matches(name.lower().replace("-", ""), by_letters, n=1)
    hint = f" (did you mean {by_letters[close[0]]}?)" if close else ""
    raise UserError(f"there is no GLUE task {name}{hint}; there are {', '.join(TASKS)}")
