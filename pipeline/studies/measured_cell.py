"""One run of a sweep in a folder of its own: trained once, resumed after a kill, its result beside it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.files import FINGERPRINT, begin, shown_path, write_json
from pipeline.studies.parallel_runs import placement
from pipeline.training.logged_run import run_fairseq
from pipeline.training.progress import Progress
from pipeline.training.recipe import option
from pipeline.training.resume import LAST, complete_save, newest_whole
from pipeline.training.run_lock import run_lock


def result_path(folder: Path) -> Path:
    """Where the result of the run in `folder` lies."""
    return folder.with_suffix(".json")


def train_and_measure(
    folder: Path,
    command: str,
    mark: str,
    arguments: Sequence[str],
    place: int,
    jobs: int,
    measure: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Train with fairseq-train in `folder` at one of `jobs` places, then `measure`; returns its record.

    The newest whole checkpoint of an earlier try is where training resumes. The record, with the
    fingerprint `mark`, is written beside the folder; the log stays, and checkpoint_last.pt.

    Raises UserError if the folder belongs to another command or other settings, or if training fails.
    """
    log = folder / "train.log"
    print(f"{shown_path(folder)}: started, log {log.name}", flush=True)
    begin(folder, command, mark)
    with run_lock(folder) as lock:
        if newest := newest_whole(folder):
            complete_save(newest)
        else:
            (folder / LAST).unlink(missing_ok=True)
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
            if path.name != LAST:
                path.unlink()
    return record
