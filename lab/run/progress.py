"""A readable view of fairseq's training log while the run writes it."""

import time
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm

from lab.run.log import Entry, log_entries

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
        for kind, record in log_entries([line]):
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
