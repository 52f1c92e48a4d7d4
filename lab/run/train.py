"""One trainer, for the commands that train and for the cells of studies: `train(plan)`.

`planned` makes the plan of a training command; lab/study/worker.py makes that of a cell.
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq import utils as fairseq_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from conventions import PREPARED, RUN_DATA
from lab.console import number_of
from lab.errors import UserError
from lab.files import ROOT, check_output_folder, read_json, shown_path
from lab.run.checkpoint import Checkpoint, read_checkpoint
from lab.run.folder import BEST, LAST, RunFolder
from lab.run.kinds import KINDS, Kind
from lab.run.launch import Machines
from lab.run.log import Progress
from lab.run.process import Processes, run_fairseq, run_here
from lab.run.recipe import Experiment, fairseq_arguments, fast_flags, option, shorter_warmup
from lab.run.resuming import complete_save, newest_whole, take_up
from lab.run.settings import check_arch, read_experiment
from user_dir.checks.schedules import check_schedule
from user_dir.checks.training import check_training
from user_dir.models.layer_plan import build_layer_attention, parse_layer_plan
from user_dir.models.options import attention_options

ON_THE_CPU = Machines(0)
SECONDS_OF_LAST_TRY = 30  # a launcher that tries again does not wait until every process has ended


@dataclass(frozen=True)
class Request:
    """A training command's request.

    `config` is a YAML, or the experiment that was read from it; without `data` and `save_dir` the YAML's data
    and a folder of runs/ are taken. `fresh` moves what an earlier run has left in `save_dir` aside and starts
    at update 1. Model, task and data must be those of its checkpoints, but for the settings named in
    `allow_changed`. `fast` adds the flags of `fast_flags`. `here`: the run is on this machine.
    """

    config: Path | Experiment
    data: Path | None
    machines: Machines
    save_dir: Path | None = None
    extra: Sequence[str] = ()
    fresh: bool = False
    allow_changed: Sequence[str] = ()
    fast: bool = False
    here: bool = True


@dataclass(frozen=True)
class RunPlan:
    """A training: the name of its experiment, its folder, and the arguments of fairseq-train, also as `read`.

    `data` are those of `data_folder` once they are `opened`; a task that draws its own has neither. With
    `in_process`, fairseq runs in this process instead of processes of its own.
    """

    name: str
    folder: RunFolder
    arguments: list[str]
    read: Namespace
    data_folder: Path | None = None
    data: Any = None
    machines: Machines = ON_THE_CPU
    fresh: bool = False
    allow_changed: Sequence[str] = ()
    in_process: bool = False

    @property
    def kind(self) -> Kind | None:
        """The kind of its task; None if no command of the project trains it."""
        return KINDS.get(self.read.task)

    @property
    def last_update(self) -> int | None:
        """The last update, None for a run that ends by epochs."""
        return self.read.max_update or None

    def opened(self, splits: Sequence[str] = ()) -> "RunPlan":
        """The plan with its data opened; checks these splits, by default the ones that training reads.

        UserError if the data, or the checkpoint to start from, do not fit.
        """
        usual = ("train",) if self.read.disable_validation else ("train", "valid")
        data = self.kind.open_data(self.data_folder, splits or usual)
        for flag in ("--restore-file", "--finetune-from-model"):
            if (start := option(self.arguments, flag)) and start != LAST:
                self.kind.check_start(Path(start), data)
        self.kind.check_data(self.read, data)
        return replace(self, data=data)


def parsed(arguments: Sequence[str]) -> Namespace:
    """The arguments as `fairseq-train` reads them, before anything is written; UserError for a wrong one."""
    fairseq_utils.import_user_module(Namespace(user_dir=str(ROOT / "user_dir")))
    parser = fairseq_options.get_training_parser()
    parser.prog = "fairseq-train"
    return fairseq_options.parse_args_and_arch(parser, list(arguments))


def checked(arguments: Sequence[str], here: bool = True) -> Namespace:
    """The arguments as `fairseq-train` reads them, with every check that needs no data; raises UserError.

    `here`: the run is on this machine.
    """
    read = parsed(arguments)
    composed = convert_namespace_to_omegaconf(read)
    check_training(composed, here=here)
    check_schedule(composed)
    check_plan(read, composed.model)
    return read


def check_plan(read: Namespace, model: Any) -> None:
    """UserError for a layer plan or an option of its attentions that cannot be, before anything is written.

    `model` is its configuration. Options are checked unless the data decide the number of positions.
    fairseq's convolutional model has options of these names that mean something else.
    """
    preset = MODEL_DATACLASS_REGISTRY.get(read.arch, Namespace)()
    for side in ("decoder", "encoder"):
        names = (f"{side}_attention", f"{side}_layers")
        plan, layers = (getattr(read, name, getattr(preset, name, None)) for name in names)
        kind, causal = MODEL_REGISTRY[read.arch], side == "decoder"
        if not isinstance(layers, int) or not (plan or hasattr(kind, "default_plan")):
            continue
        plan = parse_layer_plan(plan or kind.default_plan(layers), layers, f"--{side}-attention", causal)
        positions = getattr(model, "max_target_positions" if causal else "max_positions", None)
        positions = positions or getattr(read, "tokens_per_sample", None)
        if hasattr(kind, "default_plan") and isinstance(positions, int):
            check_attentions(plan, model, side, positions)


def check_attentions(plan: Sequence[tuple[str, ...]], model: Any, side: str, positions: int) -> None:
    """UserError for an option with which an attention of the plan cannot be built."""
    sizes = (getattr(model, f"{side}_embed_dim"), getattr(model, f"{side}_attention_heads"))
    with torch.random.fork_rng(devices=()):
        for layer in dict.fromkeys(plan):
            build_layer_attention(
                layer,
                *sizes,
                place=(plan.index(layer), len(plan)),
                causal=side == "decoder",
                dropout=model.attention_dropout,
                backend=model.attention_backend,
                max_positions=positions,
                options=attention_options(model),
            )


def planned(asked: Request) -> RunPlan:
    """The plan of a training command, its data not opened; says what differs from the YAML."""
    experiment = asked.config if isinstance(asked.config, Experiment) else read_experiment(asked.config)
    machines, yaml = asked.machines, shown_path(experiment.config)
    data = data_of(asked, experiment)
    machines.check()
    extra = [*(fast_flags(experiment, machines.gpus, asked.extra) if asked.fast else []), *asked.extra]
    if asked.here:  # else this may be a login node
        machines.check_available()
    name = KINDS[experiment.get("task", "_name")].run_name(experiment.name, extra)
    save_dir = (asked.save_dir or ROOT / "runs" / name).absolute()
    check_arch(experiment, extra)
    shorter = shorter_warmup(experiment, extra)
    arguments = fairseq_arguments(experiment, data, machines, save_dir, [*shorter, *extra])
    if asked.allow_changed:
        arguments += ["--allow-changed", ",".join(asked.allow_changed)]
    read = checked(arguments, here=asked.here)
    if experiment.get("common", "fp16") and not (read.fp16 or read.bf16 or read.amp or machines.quiet):
        print(f"note: float32 in place of the fp16 of {yaml}, which needs a GPU", file=sys.stderr)
    if shorter and not machines.quiet:
        warmup = experiment.get("lr_scheduler", "warmup_updates")
        run = number_of(read.max_update, "updates")
        note = f"note: {' '.join(shorter)} in place of the {warmup} of {yaml}: the run has {run}"
        print(note, file=sys.stderr)
    words = [f"{key}={value}" for key, value in machines.environment().items()]
    print(shlex.join([*words, str(Path(sys.prefix, "bin", "fairseq-train")), *arguments]))
    return RunPlan(
        experiment.name,
        RunFolder(save_dir),
        arguments,
        read,
        data,
        machines=machines,
        fresh=asked.fresh,
        allow_changed=asked.allow_changed,
    )


def data_of(asked: Request, experiment: Experiment) -> Path:
    """The prepared folder named on the command line, else in the YAML."""
    folder = asked.data or experiment.data_folder()
    if folder is None:
        raise UserError(f"{shown_path(experiment.config)} names no data folder; name one after it")
    return folder.absolute()


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
    if is_finished(start, plan.last_update):
        return
    if start:
        complete_save(start)
        restore = option(arguments, "--restore-file")
        if restore not in (None, LAST) and Path(restore).absolute().parent != folder.path:
            # Where the run began, perhaps with the weights alone; by now it has a checkpoint of its own.
            arguments = [word for word in arguments if not word.startswith("--reset-")]
            arguments += ["--restore-file", LAST]
    if plan.kind and plan.data is not None:
        plan.kind.record(folder.path, plan.name, plan.data, arguments)
    if plan.in_process:
        run_here("train", arguments)
    else:
        run_training(plan, arguments, plan.last_update, held)


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
        if machines.quiet and not failed:  # everything is in the log of rank 0
            log.unlink(missing_ok=True)


def how_to_resume(save_dir: Path) -> str:
    """Advice on what the same command does after an interruption."""
    saved = newest_whole(save_dir)
    if saved is None:
        return "nothing was saved, so the same command starts at update 1"
    return f"the same command resumes after update {saved.updates:,}"


def check_task(command: str, config: Path, experiment: Experiment, given: str | None = None) -> None:
    """UserError for the YAML of a task, or one `given` in its place, that another command trains."""
    task = experiment.get("task", "_name")
    if task not in KINDS or KINDS[task].command != command:
        right = f"; train it with {KINDS[task].command}" if task in KINDS else ""
        raise UserError(f"{config} is not for {command}: its task is {task}{right}")
    if given and (given not in KINDS or KINDS[given].command != command):
        right = f"a YAML of it and {KINDS[given].command}" if given in KINDS else "fairseq-train"
        raise UserError(f"--task {given} is not for {command}; leave it out, or train with {right}")


def ending(plan: RunPlan) -> str:
    """That a run is done, its best checkpoint by the metric that chose it, and how to evaluate that."""
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
    splits = read_json(data / PREPARED).get("splits", {}) if (data / PREPARED).is_file() else {}
    if splits and "test" not in splits:
        words += ["--split", "valid"]
    return f"{text}\nevaluate it: {shlex.join(words)}"
