"""What the logs of runs say: the norm of the gradient, loss and loss scale of every update."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import sha256_of, shown_path
from pipeline.studies.analysis.models import method_of, run_name, size_and_budget
from pipeline.training.checkpoint import read_checkpoint, readable
from pipeline.training.log import read_log
from user_dir.analysis import relative_deviation


@dataclass(frozen=True)
class LoggedRun:
    """A run; `records` maps each logged update to fairseq's figures, `valid` those of validation."""

    folder: Path
    method: str
    seed: int
    warm_up: int
    scale_window: int | None
    records: dict[int, dict[str, float]]
    valid: dict[int, float]
    settings: dict
    data: str

    @property
    def unit(self) -> str:
        """That of its losses."""
        return "bits per masked token" if "encoder_layers" in self.settings else "bits per token"

    def training(self) -> dict[str, Any]:
        """What a record says about the model's size and budget."""
        sizes = [record["wpb"] for record in self.records.values() if "wpb" in record]
        return size_and_budget(self.settings, self.data, max(self.records), statistics.median(sizes))

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Updates and values of a figure, where it was logged."""
        pairs = [(update, record[key]) for update, record in sorted(self.records.items()) if key in record]
        return [update for update, _ in pairs], [value for _, value in pairs]

    def deviations(self) -> dict[str, float]:
        """R1, the relative deviation of gradient norms: of all updates, after warm-up, in the second half."""
        updates, norms = self.series("gnorm")
        parts = {
            "all": norms,
            "after warm-up": [y for x, y in zip(updates, norms, strict=True) if x > self.warm_up],
            "second half": norms[len(norms) // 2 :],
        }
        return {name: relative_deviation(values) for name, values in parts.items() if values}


def what_was_read(runs: Sequence[LoggedRun]) -> dict[str, Any]:
    """What a record says of the runs it was made from."""
    return {"runs": {run_name(run.folder): sha256_of(run.folder / "train.log")[:12] for run in runs}}


def read_run(folder: Path) -> LoggedRun:
    """The log of a run, of a repeated update the last record; UserError if the folder holds no run."""
    folder = folder.absolute()
    log = folder / "train.log"
    if not log.is_file():
        raise UserError(
            f"no run {shown_path(folder)}: it has no train.log; see scripts/study.sh analysis_runs"
        )
    found = read_log(log)
    records = {int(record["num_updates"]): record for record in found["train_inner"]}
    if not records:
        raise UserError(
            f"{shown_path(log)} holds no update; train with --log-interval 1 and --log-format json, as "
            "scripts/study.sh analysis_runs does"
        )
    valid = {int(record["valid_num_updates"]): record["valid_loss"] for record in found["valid"]}
    checkpoint = read_checkpoint(newest_checkpoint(folder))
    groups = checkpoint.groups
    with readable(checkpoint.path):
        return LoggedRun(
            folder=folder,
            method=method_of(checkpoint),
            seed=checkpoint.seed,
            warm_up=int(groups["lr_scheduler"].get("warmup_updates") or 0),
            scale_window=groups["common"]["fp16_scale_window"],
            records=records,
            valid=valid,
            settings=checkpoint.settings,
            data=checkpoint.task_settings["data"],
        )


def newest_checkpoint(folder: Path) -> Path:
    """The last checkpoint that a run saved; UserError if there is none."""
    path = folder / "checkpoint_last.pt"
    if not path.is_file():
        raise UserError(f"{shown_path(folder)} holds no checkpoint_last.pt, which says what was trained")
    return path.absolute()


def check_every_update(run: LoggedRun) -> None:
    """UserError unless every update was logged: means over an interval hide the spread."""
    updates = sorted(run.records)
    interval = min((b - a for a, b in pairwise(updates)), default=1)
    if interval != 1 or updates[0] != 1:
        raise UserError(
            f"{shown_path(run.folder)} logs every {max(interval, updates[0])} updates, whose means hide the "
            "spread of gradients; train with --log-interval 1 --clip-norm 0, as scripts/study.sh "
            "analysis_runs does"
        )
