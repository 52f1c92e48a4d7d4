"""fairseq's training log (`--log-format json`): its figures, and its lines while it is written."""

import json
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

Entry = dict[str, float]
RECORD = re.compile(r"\| INFO \| (train_inner|train|valid|usage) \| (\{.*\})$")
# Keys of the update, the loss, the tokens per second and the tokens per update in a record.
INTERVAL = ("num_updates", "loss", "wps", "wpb")
EPOCH = tuple(f"train_{key}" for key in INTERVAL)
KIND_OF = {"num_updates": "train_inner", "train_num_updates": "train", "valid_num_updates": "valid"}
"""The kind of a bare record, by a key that no other has."""


SECONDS_BETWEEN_LOOKS = 0.1
"""At a log that is being written."""


class LogTail:
    """A log that processes append to, read from byte `start` on."""

    def __init__(self, path: Path, start: int) -> None:
        self.file = path.open("rb")
        self.file.seek(start)
        self.rest = b""

    def skip(self) -> None:
        """Pass over everything written so far."""
        self.file.seek(0, os.SEEK_END)
        self.rest = b""

    def lines(self) -> list[str]:
        """The whole lines written since the last call, without their ends."""
        *lines, self.rest = (self.rest + self.file.read()).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def last(self) -> list[str]:
        """The line at the end, if nothing ends it."""
        return [self.rest.decode(errors="replace")] if self.rest else []

    def close(self) -> None:
        """Read no more."""
        self.file.close()


def log_entries(lines: Iterable[str]) -> Iterator[tuple[str, Entry]]:
    """The figures in a log, each with its kind: `train_inner`, `train`, `valid` or `usage`.

    fairseq's --log-file has them without a kind, and each of them once more with every epoch.
    """
    last = ""
    for line in lines:
        match, bare = RECORD.search(line.rstrip()), line.startswith('{"')
        if match or (bare and line != last):
            try:
                record = json.loads(match[2] if match else line)
            except ValueError:  # half a line that a killed process has left, before one of the next
                continue
            finally:
                last = line
            kind = match[1] if match else next((name for key, name in KIND_OF.items() if key in record), "")
            if not kind:
                continue
            yield (
                kind,
                # GLUE's records also hold lists of predictions.
                {key: float(value) for key, value in record.items() if isinstance(value, str | int | float)},
            )


def read_log(log: Path) -> dict[str, list[Entry]]:
    """The figures in a log by kind: `train_inner` (an interval), `train` (an epoch), `valid`, `usage`."""
    records: dict[str, list[Entry]] = {kind: [] for kind in ("train_inner", "train", "valid", "usage")}
    with log.open(encoding="utf-8", errors="replace") as lines:
        for kind, record in log_entries(lines):
            records[kind].append(record)
    return records


def run_figures(log: Path) -> dict[str, Any]:
    """Figures from the log of a run so far: updates, speed, seconds, memory and curves.

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
        "seconds": seconds_at_speed(updates, batches, speeds, max(ends, default=0)) if inner else None,
        "tokens_per_second": usual_speed(speeds),
        "tokens_per_update": statistics.median(batches) if inner else None,
        "peak_memory_bytes": peak_memory(records),
        "curves": {name: curve for name, curve in curves.items() if curve},
    }


def usual_speed(speeds: Iterable[float]) -> float | None:
    """The median of the logged speeds; fairseq logs 0 for what it has not timed. None without any."""
    timed = [speed for speed in speeds if speed]
    return statistics.median(timed) if timed else None


def settled(records: dict[str, list[Entry]]) -> list[Entry]:
    """The later half of the timed intervals, since the first updates warm up. `records`: of `read_log`."""
    timed = [record for record in records["train_inner"] if record["wps"]]
    return timed[len(timed) // 2 :]


def peak_memory(records: dict[str, list[Entry]]) -> int | None:
    """The most bytes that a process of the run held; None before one has ended. `records`: of `read_log`."""
    return max((int(record["peak_memory"]) for record in records["usage"]), default=None)


def seconds_at_speed(
    updates: Sequence[float], batches: Sequence[float], speeds: Sequence[float], end: float
) -> float | None:
    """The time of a training from its log: of all tokens at the speed of their record; None without any.

    Updates after the last record, up to `end`, count at the usual speed, as does a record without one.
    fairseq's own clock ("wall") does not advance in a resumed process.
    """
    speed = usual_speed(speeds)
    if speed is None:
        return None
    gaps = [b - a for a, b in pairwise([0, *updates])]
    usual = statistics.median(gap for gap in gaps if gap > 0)
    steps = [gap if gap > 0 else usual for gap in gaps]  # a resumed run repeats updates
    batch = statistics.median(batches)
    steps, batches = [*steps, max(0, end - updates[-1])], [*batches, batch]
    pairs = zip(steps, batches, [*speeds, speed], strict=True)
    return sum(step * batch / (own or speed) for step, batch, own in pairs)
