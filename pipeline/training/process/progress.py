"""fairseq's training log (`--log-format json`), and a readable view of it during training."""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO

from tqdm import tqdm

RECORD = re.compile(r"\| INFO \| (train_inner|train|valid|usage) \| (\{.*\})$")
SECONDS_BETWEEN_LINES = 15


def read_records(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """The figures in a log, each with its kind: `train_inner`, `train`, `valid` or `usage`."""
    for line in lines:
        if match := RECORD.search(line.rstrip()):
            record = json.loads(match[2])
            yield (
                match[1],
                # GLUE's records also hold lists of predictions.
                {key: float(value) for key, value in record.items() if isinstance(value, str | int | float)},
            )


class Progress:
    """Shows a training run's log as one progress bar on a terminal, elsewhere as a line now and then."""

    def __init__(self, total_updates: int | None, out: TextIO = sys.stdout) -> None:
        self.total_updates = total_updates
        self.out = out
        self.bar: tqdm | None = None
        self.first: tuple[float, float] | None = None  # update and time of the first record
        self.shown = 0.0
        self.valid_loss: float | None = None
        self.valid_accuracy: float | None = None

    def feed(self, line: str) -> None:
        """Take note of one line of the log."""
        for kind, record in read_records([line]):
            if kind == "valid":
                self.valid_loss = record["valid_loss"]
                self.valid_accuracy = record.get("valid_accuracy")
            elif kind == "train_inner":
                self.show(record)

    def show(self, record: dict[str, float]) -> None:
        """Show how far training is; a line only if none was printed a moment ago."""
        update, text = record["num_updates"], self.figures(record)
        if self.out.isatty():
            if self.bar is None:
                self.bar = tqdm(total=self.total_updates, initial=int(update), file=self.out, unit=" updates")
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(int(update) - self.bar.n)
            return
        now = time.monotonic()
        self.first = self.first or (update, now)
        ended = self.total_updates is not None and update >= self.total_updates
        if not ended and now - self.shown < SECONDS_BETWEEN_LINES:
            return
        self.shown = now
        total = f"/{self.total_updates:,}" if self.total_updates else ""
        line = f"  update {update:,.0f}{total}, {text}{self.time_left(update, now)}"
        print(line, file=self.out, flush=True)

    def figures(self, record: dict[str, float]) -> str:
        """Loss, the last validation's figures and speed."""
        text = f"loss {record['loss']:.2f} bits"
        if self.valid_loss is not None:
            accuracy = "" if self.valid_accuracy is None else f", {self.valid_accuracy:.1f} % right"
            text += f" (validation {self.valid_loss:.2f}{accuracy})"
        return f"{text}, {record['wps']:,.0f} tokens/s"

    def time_left(self, update: float, now: float) -> str:
        """When training will be done at the pace so far; empty while that is unknown."""
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
