"""One trainer, for the commands that train and for the cells of studies: `train(plan)`."""

import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from conventions import RUN_DATA
from conventions.content import manifest_of
from conventions.files import remove_if_left
from lab.console import number_of
from lab.errors import UserError
from lab.files import check_output, check_output_folder, flush_to_disk, read_json, replacing, shown_path
from lab.run.checkpoint import Checkpoint, find_resume_point, newest_whole, read_checkpoint, read_whole
from lab.run.folder import (
    BEST,
    DATA_RECORD,
    HALF,
    LAST,
    RunFolder,
    check_vocabulary,
    keep_vocabulary,
    left_by_a_run,
    logged_by_a_start,
    move_aside,
)
from lab.run.plan import RunPlan
from lab.run.process import Processes, run_fairseq, run_here
from lab.run.progress import Progress
from lab.run.recipe import option
from user_dir.checks.same_settings import check_same_run
from user_dir.checks.training_data import ADVICE, keep_data_record

SECONDS_OF_LAST_TRY = 30  # a launcher that retries does not wait until every process has ended


def train_alone(plan: RunPlan) -> None:
    """Train, with the folder locked; UserError if another run is at work there."""
    folder = plan.folder
    check_output_folder(folder.path, folder.option)
    folder.path.mkdir(parents=True, exist_ok=True)
    if plan.machines.node_rank:  # place 0 looks after the folder; training waits for it
        if not is_finished(None if plan.fresh else newest_whole(folder.path), plan.last_update):
            run_training(plan, plan.arguments, plan.last_update)
        return
    with folder.lock(0 if plan.machines.launcher == "spawn" else SECONDS_OF_LAST_TRY) as lock:
        train(plan, (lock,))


def train(plan: RunPlan, held: Sequence[int] = ()) -> None:
    """Train until the last update, from the newest whole checkpoint if there is one.

    A run that has made its last update is left as it is. The caller has locked the folder; fairseq's
    processes inherit the descriptors `held`. UserError if a run of other settings or data has begun there.
    """
    folder, arguments = plan.folder, plan.arguments
    data = plan.data.folder if plan.data is not None else None
    read = convert_namespace_to_omegaconf(plan.read)
    start = take_up(folder, data, read, plan.allow_changed, plan.fresh)
    finished = is_finished(start, plan.last_update)
    if start and not (finished and start.path.name == BEST):  # the only one that a finished run may have kept
        complete_save(start)
    if finished:
        return
    if start:
        print(f"resuming from {start.path.name} (update {start.updates:,})", flush=True)
        restore = option(arguments, "--restore-file")
        if restore not in (None, LAST) and Path(restore).absolute().parent != folder.path:
            # Where the run began, perhaps with the weights alone; by now it has its own checkpoint.
            arguments = [word for word in arguments if not word.startswith("--reset-")]
            arguments += ["--restore-file", LAST]
    if plan.kind and plan.data is not None:
        plan.kind.record(folder.path, plan.name, plan.data, arguments)
    if plan.in_process:
        run_here("train", arguments)
    else:
        run_training(plan, arguments, plan.last_update, held)


def take_up(
    folder: RunFolder, data: Path | None, read: Any, allowed: Collection[str] = (), fresh: bool = False
) -> Checkpoint | None:
    """The checkpoint that the run of a folder resumes from, None for a start at update 1.

    `data` are prepared (None for a task that draws its own), `read` is fairseq's configuration. `fresh` moves
    aside what another run has left; log and curves of a start that saved nothing are moved aside in any case,
    except in the folder of a study's cell, which `RunFolder.begin` has cleared. UserError if a run with other
    settings, another dictionary or other data has begun there, but for the settings that are `allowed` to
    differ.
    """
    path = folder.path
    if fresh:
        move_aside(path, left_by_a_run(path, data))
    failed_start = folder.is_failed_start
    if data and not failed_start:
        check_vocabulary(data, path, folder.option)
    start = find_resume_point(path, *(["move them away"] if folder.command else []))
    if start:
        check_same_run(str(path), start.groups, read)
    if data:
        check_output(path / RUN_DATA, DATA_RECORD, option=folder.option)
        advice = f"move it away, or choose another {folder.option}" if folder.command else ADVICE
        keep_data_record([data], path, start is not None, "data" in allowed, advice)
        if failed_start and not folder.command:
            move_aside(path, logged_by_a_start(path), "the earlier training has left no checkpoint; ")
        keep_vocabulary(data, path, failed_start, folder.option)
    return start


def complete_save(saved: Checkpoint) -> None:
    """Finish the interrupted save of `saved`: it becomes the last checkpoint, and the best if it was best."""
    folder = saved.path.parent
    for half in folder.glob(HALF):
        remove_if_left(half)
    if saved.path.name != LAST:
        copy_durably(saved.path, folder / LAST)
        best = read_whole(folder / BEST) if saved.is_best else None
        if saved.is_best and (best is None or best.updates < saved.updates):
            copy_durably(saved.path, folder / BEST)


def copy_durably(source: Path, target: Path) -> None:
    """Copy a file whole or not at all; it is on the disk when this returns."""
    with replacing(target, ".tmp") as partial:
        shutil.copyfile(source, partial)
        flush_to_disk(partial)


def is_finished(start: Checkpoint | None, last_update: int | None) -> bool:
    """Whether the run has made its last update; says so."""
    finished = start is not None and last_update is not None and start.updates >= last_update
    if finished:
        print(
            f"finished: {start.path} has made {number_of(start.updates, 'updates')}; nothing to do",
            flush=True,
        )
    return finished


def run_training(
    plan: RunPlan, arguments: Sequence[str], last_update: int | None, held: Sequence[int] = ()
) -> None:
    """Run `fairseq-train`, its log in the folder; it inherits the descriptors `held`."""
    folder, machines = plan.folder.path, plan.machines
    log = folder / machines.log_name
    print(f"log, checkpoints and TensorBoard curves: {folder}", flush=True)
    progress = Progress(last_update, sys.stdout)
    failed = False
    try:
        processes = Processes(machines.ranks(), machines.environment(), held)
        run_fairseq("train", arguments, log, progress.feed, progress.wait, processes)
    except UserError:
        failed = True
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_resume(folder)) from None
    finally:
        progress.close()
        if machines.quiet and not failed:  # the log of rank 0 has everything
            log.unlink(missing_ok=True)


def how_to_resume(save_dir: Path) -> str:
    """Advice after an interruption: where the same command resumes."""
    saved = newest_whole(save_dir)
    if saved is None:
        return "nothing was saved, so the same command starts at update 1"
    return f"the same command resumes after update {saved.updates:,}"


def ending(plan: RunPlan) -> str:
    """The message of a finished run: its best checkpoint, the metric that chose it, how to evaluate it."""
    save_dir, metric = plan.folder.path, plan.read.best_checkpoint_metric
    name = next((name for name in (BEST, LAST) if (save_dir / name).is_file()), None)
    if name is None:
        return f"done: {shown_path(save_dir)}, which holds no checkpoint"
    checkpoint = read_checkpoint(save_dir / name)
    text = f"done: {shown_path(checkpoint.path)} of update {checkpoint.updates:,}"
    if name == BEST and checkpoint.score is not None:
        text += f", the best on valid ({metric} {checkpoint.score:.4g}{' bits' if metric == 'loss' else ''})"
    data = Path(read_json(save_dir / RUN_DATA)["data"])
    words = [*plan.kind.evaluation.split(), shown_path(save_dir / name), shown_path(data)]
    splits = (manifest_of(data) or {}).get("splits", {})
    if splits and "test" not in splits:
        words += ["--split", "valid"]
    return f"{text}\nevaluate it: {shlex.join(words)}"
