"""One run of a sweep in a folder of its own: trained once, resumed after a kill, its result beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.console import number_of, runs_failed
from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.files import FINGERPRINT, begin, fingerprint, finished, shown_path, write_atomically, write_json
from pipeline.studies.parallel_runs import placement, run_all
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.process.progress import Progress
from pipeline.training.process.resume import LAST, complete_save, newest_whole
from pipeline.training.process.run_lock import run_lock
from pipeline.training.recipe import Experiment, option
from pipeline.training.train import Machines, fairseq_arguments, parsed
from user_dir.tasks.image_data import ImageData
from user_dir.tasks.lra_data import LRAData


@dataclass(frozen=True)
class Cell:
    """A run: a method of an experiment with a seed; `flags` are those that the user gave for all runs."""

    experiment: Experiment
    method: str
    seed: int
    flags: tuple[str, ...]
    out: Path

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.method}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where it trains; its result lies beside it."""
        return self.out / self.method / f"seed{self.seed}"

    def own_flags(self) -> list[str]:
        """What is added to the YAML."""
        raise NotImplementedError

    def arguments(self) -> list[str]:
        """Those of `fairseq-train`."""
        raise NotImplementedError

    def prepare(self, arguments: Sequence[str]) -> None:
        """Write into the folder what belongs there beside checkpoints and log; by default nothing."""

    def decisive(self) -> list[Any]:
        """All that decides its result: anything JSON can hold."""
        return [self.experiment.settings, self.own_flags()]

    def fingerprint(self) -> str:
        """A short hash of `decisive`."""
        return fingerprint(self.decisive())

    def result(self) -> dict[str, Any] | None:
        """What it has found if it is finished; UserError if a run of other settings lies there."""
        return finished(result_path(self.folder), self.fingerprint())


@dataclass(frozen=True)
class DataCell(Cell):
    """A run on prepared data, on one GPU or, without one, on the CPU."""

    data: PreparedData | LRAData | ImageData

    def arguments(self) -> list[str]:
        """Those of `fairseq-train`."""
        machines = Machines(1 if torch.cuda.is_available() else 0)
        return fairseq_arguments(self.experiment, self.data.folder, machines, self.folder, self.own_flags())


def first_seed(experiment: Experiment) -> int:
    """The YAML's; further runs count on from it."""
    return int(experiment.get("common", "seed"))


def check_flags(flags: Sequence[str], ours: Mapping[str, str]) -> None:
    """UserError for flags that differ from run to run; `ours` maps each to the option to use instead."""
    for flag, instead in ours.items():
        if option(flags, flag) is not None:
            raise UserError(f"{flag} differs from run to run; use {instead}")


def run_missing(
    title: str, cells: Sequence[Cell], jobs: int, work: Callable[[Cell, int], str], out: Path
) -> list[str]:
    """Do `work` for the cells without a result, see `run_all`; says under `title` how many there are.

    Raises UserError for a flag that `fairseq-train` does not accept, before anything is written.
    """
    for cell in cells:
        parsed(cell.arguments())
    missing = [cell for cell in cells if cell.result() is None]
    done_before = len(cells) - len(missing)
    runs = number_of(len(cells), "runs")
    print(f"{title}: {runs}, {done_before} done before; results: {shown_path(out)}")
    return run_all(missing, jobs, work)


def publish(
    results: Sequence[dict[str, Any]],
    stem: Path,
    write: Callable[[Sequence[dict[str, Any]]], str],
    plot: Callable[[Sequence[dict[str, Any]], Path], None],
    failures: Sequence[str],
) -> None:
    """Write and print STEM.md, the table of finished runs, and draw STEM.png; UserError for `failures`."""
    if results:
        table, text, picture = write(results), stem.with_suffix(".md"), stem.with_suffix(".png")
        write_atomically(text, (table + "\n").encode())
        plot(results, picture)
        print(f"\n{table}\n\nwritten: {shown_path(text)}, {shown_path(picture)}")
    if failures:
        raise runs_failed(failures)


def result_path(folder: Path) -> Path:
    """Where the result of the run in `folder` lies."""
    return folder.with_suffix(".json")


def train_and_measure(
    cell: Cell, command: str, place: int, jobs: int, measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Train `cell` with fairseq-train at one of `jobs` places, then `measure`; returns its record.

    The newest whole checkpoint of an earlier try is where training resumes. The record, with the cell's
    fingerprint, is written beside its folder; the log stays, and the "checkpoint" of the record, by default
    the last one.

    Raises UserError if the folder belongs to another command or other settings, or if training fails.
    """
    folder, arguments, mark = cell.folder, cell.arguments(), cell.fingerprint()
    log = folder / "train.log"
    print(f"{shown_path(folder)}: started, log {log.name}", flush=True)
    begin(folder, command, mark)
    with run_lock(folder) as lock:
        if newest := newest_whole(folder):
            complete_save(newest)
        else:
            (folder / LAST).unlink(missing_ok=True)
        cell.prepare(arguments)
        progress = Progress(int(option(arguments, "--max-update") or 0) or None) if jobs == 1 else None
        try:
            feed = progress.feed if progress else lambda line: None
            run_fairseq("train", arguments, log, feed, placement(place, jobs), (lock,))
        finally:
            if progress:
                progress.close()
        record = {FINGERPRINT: mark, **measure()}
        write_json(result_path(folder), record)
        for path in folder.glob("checkpoint*.pt"):
            if path.name != record.get("checkpoint", LAST):
                path.unlink()
    return record
