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

    As `run_figures`, but for a run that must have a curve of training and of validation. Raises UserError if
    there is no loss.
    """
    figures = run_figures(log)
    curves = figures["curves"]
    if not {"train", "valid"} <= curves.keys():
        raise UserError("the training log holds no losses; was log_format in the YAML changed?")
    kept = ("tokens_per_second", "tokens_per_update", "peak_memory_bytes")
    return {
        **{key: figures[key] for key in kept},
        "train_seconds": figures["seconds"],
        "curves": {split: curves[split] for split in ("train", "valid")},
    }


def run_figures(log: Path) -> dict[str, Any]:
    """What the log of a run says, as far as it goes: updates, speed, seconds, memory and curves.

    Losses are in bits. A resumed run repeats the updates after its last checkpoint: the later record counts,
    the time of both does. A run of fewer updates than an interval has only its epochs' records. What has not
    been logged is None, or has no curve.
    """
    records = read_log(log)
    inner, keys = (records["train_inner"], INTERVAL) if records["train_inner"] else (records["train"], EPOCH)
    updates, losses, speeds, batches = ([record[key] for record in inner] for key in keys)
    updates = [int(update) for update in updates]
    curves = {"train": sorted(dict(zip(updates, losses, strict=True)).items())}
    for name in ("loss", "accuracy"):
        curve = {
            int(r["valid_num_updates"]): r[f"valid_{name}"] for r in records["valid"] if f"valid_{name}" in r
        }
        curves["valid" if name == "loss" else "valid_accuracy"] = sorted(curve.items())
    ends = [record["train_num_updates"] for record in records["train"]]
    return {
        "updates": int(max([*updates, *ends], default=0)),
        "seconds": seconds_at_speed(updates, batches, speeds) if inner else None,
        "tokens_per_second": statistics.median(speeds) if inner else None,
        "tokens_per_update": statistics.median(batches) if inner else None,
        "peak_memory_bytes": peak_memory(records),
        "curves": {name: curve for name, curve in curves.items() if curve},
    }


def peak_memory(records: dict[str, list[Record]]) -> int | None:
    """The most bytes that a process of the run held; None if none has ended yet. `records`: of `read_log`."""
    return max((int(record["peak_memory"]) for record in records["usage"]), default=None)


def seconds_at_speed(updates: Sequence[float], batches: Sequence[float], speeds: Sequence[float]) -> float:
    """The time of a training from its log: of all tokens at the speed of their record.

    fairseq's own clock ("wall") does not advance in a resumed process.
    """
    interval = min((b - a for a, b in pairwise(updates) if b > a), default=updates[0])
    usual = statistics.median(speeds)
    pairs = zip(batches, speeds, strict=True)
    return sum(interval * batch / (speed or usual) for batch, speed in pairs if speed or usual)
