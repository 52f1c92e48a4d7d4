"""Curves, speed, time and memory from the log of a training run."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.training.process.progress import read_records

Record = dict[str, float]
# Where a record has the update, the loss, the tokens per second and the tokens per update.
INTERVAL = ("num_updates", "loss", "wps", "wpb")
EPOCH = tuple(f"train_{key}" for key in INTERVAL)


def read_log(log: Path) -> dict[str, list[Record]]:
    """The figures in a log by kind: `train_inner` (an interval), `train` (an epoch), `valid`, `usage`."""
    records: dict[str, list[Record]] = {kind: [] for kind in ("train_inner", "train", "valid", "usage")}
    with log.open(encoding="utf-8") as lines:
        for kind, record in read_records(lines):
            records[kind].append(record)
    return records


def training_figures(log: Path) -> dict[str, Any]:
    """Curves (update, bits per token), speed, batch, seconds and memory from the log of a run.

    A resumed run repeats the updates after its last checkpoint: the later record counts, the time of
    both does. A run of fewer updates than an interval has only its epochs' records. Raises UserError if
    there is no loss.
    """
    records = read_log(log)
    inner, keys = (records["train_inner"], INTERVAL) if records["train_inner"] else (records["train"], EPOCH)
    if not inner or not records["valid"]:
        raise UserError("the training log holds no losses; was log_format in the YAML changed?")
    updates, losses, speeds, batches = ([record[key] for record in inner] for key in keys)
    updates = [int(update) for update in updates]
    valid = {int(record["valid_num_updates"]): record["valid_loss"] for record in records["valid"]}
    return {
        "tokens_per_second": statistics.median(speeds),
        "tokens_per_update": statistics.median(batches),
        "peak_memory_bytes": peak_memory(records),
        "train_seconds": seconds_at_speed(updates, batches, speeds),
        "curves": {
            "train": sorted(dict(zip(updates, losses, strict=True)).items()),
            "valid": sorted(valid.items()),
        },
    }


def peak_memory(records: dict[str, list[Record]]) -> int | None:
    """The most bytes that a process of the run held; None if none has ended yet. `records`: of `read_log`."""
    return max((int(record["peak_memory"]) for record in records["usage"]), default=None)


def training_seconds(log: Path) -> float | None:
    """The time of training up to the last interval of the log, None if it ended before the first."""
    inner = read_log(log)["train_inner"]
    if not inner:
        return None
    return seconds_at_speed(*([record[key] for record in inner] for key in ("num_updates", "wpb", "wps")))


def seconds_at_speed(updates: Sequence[float], batches: Sequence[float], speeds: Sequence[float]) -> float:
    """The time of a training from its log: of all tokens at the speed of their record.

    fairseq's own clock ("wall") does not advance in a resumed process.
    """
    interval = min((b - a for a, b in pairwise(updates) if b > a), default=updates[0])
    usual = statistics.median(speeds)
    pairs = zip(batches, speeds, strict=True)
    return sum(interval * batch / (speed or usual) for batch, speed in pairs if speed or usual)
