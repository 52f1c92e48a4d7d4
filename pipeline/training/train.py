"""From a YAML of configs/ to a running `fairseq-train`, for scripts/train_*.sh and pretrain_roberta.sh."""

import contextlib
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fairseq import options as fairseq_options
from fairseq import utils as fairseq_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from pipeline.commands.training.train_lm import parse
from pipeline.console import number_of
from pipeline.errors import UserError
from pipeline.files import ROOT
from pipeline.training.kinds import KINDS
from pipeline.training.process.launch import Machines, machines_of
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.process.progress import Progress
from pipeline.training.process.resume import (
    LAST,
    SavedState,
    complete_save,
    find_resume_point,
    move_aside,
    newest_whole,
)
from pipeline.training.process.run_lock import run_lock
from pipeline.training.recipe import Experiment, option, read_experiment, replaced_precision, shared_batch
from pipeline.training.same_settings import check_same_settings, keep_data_record
from pipeline.training.save_dir import keep_vocabulary, make_save_dir
from user_dir.models.layer_plan import parse_layer_plan
from user_dir.schedules import check_schedule
from user_dir.training_checks import check_training

SECONDS_OF_LAST_TRY = 30  # a launcher that tries again does not wait until every process has ended
Parse = Callable[[Sequence[str]], tuple[Namespace, list[str]]]


def fairseq_arguments(
    experiment: Experiment, data: Path, machines: Machines, save_dir: Path, extra: Sequence[str]
) -> list[str]:
    """The arguments of `fairseq-train`; `extra`, which the user gave, comes last and wins."""
    arguments = [str(data), "--user-dir", str(ROOT / "user_dir")]
    arguments += [*experiment.flags(replaced_precision(experiment, machines.gpus, extra)), *machines.flags()]
    if option(extra, "--update-freq") is None:
        steps, size = shared_batch(experiment, machines.processes, option(extra, "--batch-size") is None)
        arguments += ["--update-freq", ",".join(map(str, steps))]
        arguments += [] if size is None else ["--batch-size", str(size)]
    curves = save_dir / "tensorboard"
    arguments += ["--save-dir", str(save_dir), "--tensorboard-logdir", str(curves)]
    return [*arguments, *extra]


def parsed(arguments: Sequence[str]) -> Namespace:
    """The arguments as `fairseq-train` reads them, before anything is written; UserError for a wrong one."""
    fairseq_utils.import_user_module(Namespace(user_dir=str(ROOT / "user_dir")))
    parser = fairseq_options.get_training_parser()
    parser.prog = "fairseq-train"
    return fairseq_options.parse_args_and_arch(parser, list(arguments))


def train(
    config: Path,
    data: Path | None,
    machines: Machines,
    save_dir: Path | None = None,
    extra: Sequence[str] = (),
    dry_run: bool = False,
    fresh: bool = False,
    allow_changed: Collection[str] = (),
) -> Path:
    """Train until the YAML's last update, from the newest whole checkpoint if there is one.

    `fresh` moves what an earlier run has left in `save_dir` aside and starts at update 1. A run that
    has made its last update is left as it is. Model, task and data must be those of the checkpoints,
    but for the settings named in `allow_changed`.

    Returns the folder with checkpoints, log and TensorBoard curves.
    """
    experiment = read_experiment(config)
    kind = KINDS[experiment.get("task", "_name")]
    folder = data or experiment.data_folder()
    if folder is None:
        raise UserError(f"{config} names no data folder; name one after it")
    machines.check()
    if not dry_run:  # which may be on a login node
        machines.check_available()
    save_dir = (save_dir or ROOT / "runs" / kind.run_name(experiment.name, extra)).absolute()
    arguments = fairseq_arguments(experiment, folder.absolute(), machines, save_dir, extra)
    read = parsed(arguments)
    composed = convert_namespace_to_omegaconf(read)
    check_training(composed, here=not dry_run)
    check_schedule(composed)
    check_plan(read)
    if experiment.get("common", "fp16") and not (read.fp16 or read.bf16 or read.amp or machines.quiet):
        print(f"note: float32 in place of the fp16 of {config}, which needs a GPU", file=sys.stderr)
    words = [f"{key}={value}" for key, value in machines.environment().items()]
    print(shlex.join([*words, str(Path(sys.prefix, "bin", "fairseq-train")), *arguments]))
    if dry_run:
        return save_dir
    prepared = kind.open_data(folder, ("train",) if "--disable-validation" in extra else ("train", "valid"))
    for flag in ("--restore-file", "--finetune-from-model"):
        if start := option(extra, flag):
            kind.check_start(Path(start), prepared)
    last_update = read.max_update or None
    make_save_dir(save_dir)
    if machines.node_rank:  # place 0 looks after the folder; training waits for it
        start = None if fresh else newest_whole(save_dir)
        if not is_finished(start, last_update):
            run_training(arguments, save_dir, machines, last_update)
        return save_dir
    with run_lock(save_dir, 0 if machines.launcher == "spawn" else SECONDS_OF_LAST_TRY) as lock:
        keep_vocabulary(prepared.folder, save_dir)
        if fresh:
            move_aside(save_dir)
        start = find_resume_point(save_dir)
        if start:
            check_same_settings(start.configuration, read, save_dir, allow_changed)
        keep_data_record(prepared.folder, save_dir, start is not None, allow_changed)
        if is_finished(start, last_update):
            return save_dir
        if start:
            complete_save(start)
            restore = option(extra, "--restore-file")
            if restore and Path(restore).absolute().parent != save_dir:
                arguments += ["--restore-file", LAST]  # where the run began; by now it has its own
        kind.record(save_dir, experiment.name, prepared, arguments)
        run_training(arguments, save_dir, machines, last_update, (lock,))
    return save_dir


def is_finished(start: SavedState | None, last_update: int | None) -> bool:
    """Whether the run has made its last update; says so."""
    finished = start is not None and last_update is not None and start.updates >= last_update
    if finished:
        print(
            f"finished: {start.path} has made {number_of(start.updates, 'updates')}; nothing to do",
            flush=True,
        )
    return finished


def run_training(
    arguments: Sequence[str],
    save_dir: Path,
    machines: Machines,
    last_update: int | None,
    held: Sequence[int] = (),
) -> None:
    """Run `fairseq-train`, its log in `save_dir`; it inherits the descriptors `held`."""
    log = save_dir / machines.log_name
    print(f"log, checkpoints and TensorBoard curves: {save_dir}", flush=True)
    progress = Progress(last_update, sys.stdout)
    failed = False
    try:
        environment, ranks = machines.environment(), machines.ranks()
        run_fairseq("train", arguments, log, progress.feed, environment, held, ranks)
    except UserError:
        failed = True
        raise
    finally:
        progress.close()
        if machines.quiet and not failed:  # everything is in the log of rank 0
            log.unlink(missing_ok=True)


def check_plan(read: Namespace) -> None:
    """UserError for a layer plan that cannot be, before anything is written.

    Where a preset decides the number of layers, the model finds out; fairseq's convolutional model has
    options of these names that mean something else.
    """
    for side in ("decoder", "encoder"):
        plan, layers = (getattr(read, f"{side}_{name}", None) for name in ("attention", "layers"))
        if plan and isinstance(layers, int):
            parse_layer_plan(plan, layers, f"--{side}-attention", causal=side == "decoder")


def check_task(command: str, config: Path, given: str | None = None) -> None:
    """UserError for the YAML of a task, or one `given` in its place, that another command trains."""
    task = read_experiment(config).get("task", "_name")
    if task not in KINDS or KINDS[task].command != command:
        right = f"; train it with scripts/{KINDS[task].command}" if task in KINDS else ""
        raise UserError(f"{config} is not for {command}: its task is {task}{right}")
    if given and (given not in KINDS or KINDS[given].command != command):
        right = f"a YAML of it and scripts/{KINDS[given].command}" if given in KINDS else "fairseq-train"
        raise UserError(f"--task {given} is not for {command}; leave it out, or train with {right}")


def main(command: str = "train_lm.sh", parse: Parse = parse) -> None:
    """Entry point; `parse` reads the command line of `command`."""
    options, extra = parse(sys.argv[1:])
    check_task(command, options.config, option(extra, "--task"))
    machines = machines_of(options)
    with open(os.devnull, "w") as nowhere, contextlib.ExitStack() as stack:
        if machines.quiet:
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        train(
            options.config,
            options.data,
            machines,
            options.save_dir,
            extra,
            options.dry_run,
            options.fresh,
            options.allow_changed,
        )
