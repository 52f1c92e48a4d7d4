"""fairseq's training log (`--log-format json`): its figures, and a readable view of it during training."""

import json
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

Entry = dict[str, float]
RECORD = re.compile(r"\| INFO \| (train_inner|train|valid|usage) \| (\{.*\})$")
# Keys of the update, the loss, the tokens per second and the tokens per update in a record.
INTERVAL = ("num_updates", "loss", "wps", "wpb")
EPOCH = tuple(f"train_{key}" for key in INTERVAL)
KIND_OF = {"num_updates": "train_inner", "train_num_updates": "train", "valid_num_updates": "valid"}
"""The kind of a bare record, by a key that no other has."""
SECONDS_BETWEEN_LINES = 15
SECONDS_OF_SILENCE = 20
# Text in the log, and the activity that starts with it.
DOING = {
    "Start iterating over samples": "training",
    'begin validation on "': "validating",
    "evaluating checkpoint": "evaluating",
}
BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}"
BAR_WITHOUT_END = "{n_fmt} updates, {elapsed}{postfix}"


def read_records(lines: Iterable[str]) -> Iterator[tuple[str, Entry]]:
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
        for kind, record in read_records(lines):
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
        "tokens_per_second": statistics.median(speeds) if inner else None,
        "tokens_per_update": statistics.median(batches) if inner else None,
        "peak_memory_bytes": peak_memory(records),
        "curves": {name: curve for name, curve in curves.items() if curve},
    }


def peak_memory(records: dict[str, list[Entry]]) -> int | None:
    """The most bytes that a process of the run held; None before one has ended. `records`: of `read_log`."""
    return max((int(record["peak_memory"]) for record in records["usage"]), default=None)


def seconds_at_speed(
    updates: Sequence[float], batches: Sequence[float], speeds: Sequence[float], end: float
) -> float:
    """The time of a training from its log: of all tokens at the speed of their record.

    Updates after the last record, up to `end`, count at the usual speed, as does a record without one.
    fairseq's own clock ("wall") does not advance in a resumed process.
    """
    gaps = [b - a for a, b in pairwise([0, *updates])]
    usual = statistics.median(gap for gap in gaps if gap > 0)
    steps = [gap if gap > 0 else usual for gap in gaps]  # a resumed run repeats updates
    speed, batch = statistics.median(speeds), statistics.median(batches)
    steps, batches = [*steps, max(0, end - updates[-1])], [*batches, batch]
    pairs = zip(steps, batches, [*speeds, speed], strict=True)
    return sum(step * batch / (own or speed) for step, batch, own in pairs if own or speed)


class Progress:
    """Shows a training run's log as one progress bar on a terminal, elsewhere as a line now and then.

    `name`, if there is one, leads the bar and each line.
    """

    def __init__(
        self,
        total_updates: int | None,
        out: TextIO,
        clock: Callable[[], float] = time.monotonic,
        name: str = "",
    ) -> None:
        self.total_updates = total_updates
        self.out = out
        self.lead = f"{name}: " if name else ""
        self.clock = clock
        self.bar: tqdm | None = None
        self.first: tuple[float, float] | None = None  # update and time of the first record
        self.update = 0.0  # of the last record
        self.doing = "starting"
        self.began = self.shown = clock()
        self.valid_loss: float | None = None
        self.valid_accuracy: float | None = None

    def feed(self, line: str) -> None:
        """Take note of one line of the log."""
        self.doing = next((doing for sign, doing in DOING.items() if sign in line), self.doing)
        for kind, record in read_records([line]):
            if kind == "valid":
                self.valid_loss = record["valid_loss"]
                self.valid_accuracy = record.get("valid_accuracy")
                self.doing = "training"
            elif kind == "train_inner":
                self.show(record)

    def wait(self) -> None:
        """Called often: if nothing was shown for a while, print the current activity."""
        now = self.clock()
        if self.out.isatty():
            if self.bar is None:
                self.bar = self.new_bar(0)
                self.bar.set_postfix_str(self.doing)
            elif now - self.shown >= 1:
                self.shown = now
                self.bar.refresh()
        elif now - self.shown >= SECONDS_OF_SILENCE:
            self.shown = now
            since = f" since update {self.update:,.0f}" if self.update else ""
            silent = tqdm.format_interval(now - self.began)
            print(f"  {self.lead}{self.doing}{since}, {silent}", file=self.out, flush=True)

    def new_bar(self, update: int) -> tqdm:
        """A bar of at most 80 columns, if the terminal has no more, that begins at `update`."""
        total = self.total_updates
        form = self.lead.replace("{", "{{").replace("}", "}}") + (BAR if total else BAR_WITHOUT_END)
        return tqdm(total=total, initial=update, file=self.out, bar_format=form, dynamic_ncols=True)

    def show(self, record: Entry) -> None:
        """Show the progress; a line only if none was printed a moment ago."""
        update, now = record["num_updates"], self.clock()
        started, self.first = self.first is None, self.first or (update, now)
        self.update = update
        if self.out.isatty():
            if started:  # the time so far says nothing about the speed
                if self.bar is not None:
                    self.bar.leave = False
                    self.bar.close()
                self.bar = self.new_bar(int(update))
            self.bar.set_postfix_str(self.figures(record, short=True), refresh=False)
            self.bar.update(int(update) - self.bar.n)
            return
        ended = self.total_updates is not None and update >= self.total_updates
        if not (started or ended) and now - self.shown < SECONDS_BETWEEN_LINES:
            return
        self.shown = now
        total = f"/{self.total_updates:,}" if self.total_updates else ""
        line = (
            f"  {self.lead}update {update:,.0f}{total}, {self.figures(record)}{self.time_left(update, now)}"
        )
        print(line, file=self.out, flush=True)

    def figures(self, record: Entry, short: bool = False) -> str:
        """Loss, the last validation's figures and speed; `short`: for a bar of 80 columns."""
        loss, speed = f"loss {record['loss']:.2f}", f"{record['wps']:,.0f}"
        right = None if self.valid_accuracy is None else f"{self.valid_accuracy:.1f} %"
        if short:
            valid = right or (None if self.valid_loss is None else f"{self.valid_loss:.2f}")
            return ", ".join([loss, *([f"valid {valid}"] if valid else []), f"{speed} tok/s"])
        text = f"{loss} bits"
        if self.valid_loss is not None:
            text += f" (validation {self.valid_loss:.2f}{f', {right} right' if right else ''})"
        return f"{text}, {speed} tokens/s"

    def time_left(self, update: float, now: float) -> str:
        """When training will end at the current pace; empty while unknown."""
        start, began = self.first or (update, now)
        if not self.total_updates or update <= start:
            return ""
        seconds = (self.total_updates - update) * (now - began) / (update - start)
        return f", {tqdm.format_interval(seconds)} left" if seconds >= 1 else ""

    def close(self) -> None:
        """Draw the bar a last time and end its line."""
        if self.bar is not None:
            self.bar.refresh()
            self.bar.close()
