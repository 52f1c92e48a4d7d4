"""From a YAML of configs/ to a running `fairseq-train`, for the commands that train."""

import shlex
import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq import utils as fairseq_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from conventions import PREPARED
from lab.console import number_of
from lab.data.prepared import open_prepared
from lab.errors import UserError
from lab.files import ROOT, read_json, shown_path
from lab.methods import METHODS
from lab.outputs import check_output_folder, run_lock
from lab.papers import read_table
from lab.run.checkpoint import Checkpoint, read_checkpoint
from lab.run.folder import (
    BEST,
    DATA,
    LAST,
    check_vocabulary,
    complete_save,
    find_resume_point,
    is_failed_start,
    keep_data_record,
    keep_vocabulary,
    move_aside,
    newest_whole,
)
from lab.run.kinds import KINDS
from lab.run.launch import Machines
from lab.run.log import Progress, peak_memory, read_log
from lab.run.process import run_fairseq
from lab.run.recipe import (
    Experiment,
    check_arch,
    fairseq_arguments,
    fast_flags,
    option,
    read_experiment,
    shorter_warmup,
)
from user_dir.checks.same_settings import check_same_run
from user_dir.checks.schedules import check_schedule
from user_dir.checks.training import check_training
from user_dir.models.layer_plan import build_layer_attention, parse_layer_plan
from user_dir.models.options import attention_options

PLANNED_UPDATES = 20  # that --plan trains to find the pace
PAPER = "wikitext103"
BAND = 0.02
"""Twice the distance between the paper's three best perplexities, a quarter of that to the next."""
SECONDS_OF_LAST_TRY = 30  # a launcher that tries again does not wait until every process has ended


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


def train(
    config: Path | Experiment,
    data: Path | None,
    machines: Machines,
    save_dir: Path | None = None,
    extra: Sequence[str] = (),
    dry_run: bool = False,
    fresh: bool = False,
    allow_changed: Collection[str] = (),
    fast: bool = False,
    plan: bool = False,
) -> Path:
    """Train until the YAML's last update, from the newest whole checkpoint if there is one.

    `config` is a YAML, or the experiment that was read from it.
    `fresh` moves what an earlier run has left in `save_dir` aside and starts at update 1. A run that
    has made its last update is left as it is. Model, task and data must be those of the checkpoints,
    but for the settings named in `allow_changed`. `fast` adds the flags of `fast_flags`.
    `plan` says what the run will take and trains no more than that needs.

    Returns the folder with checkpoints, log and TensorBoard curves.
    """
    experiment = config if isinstance(config, Experiment) else read_experiment(config)
    yaml = shown_path(experiment.config)
    kind = KINDS[experiment.get("task", "_name")]
    folder = data or experiment.data_folder()
    if folder is None:
        raise UserError(f"{yaml} names no data folder; name one after it")
    machines.check()
    extra = [*(fast_flags(experiment, machines.gpus, extra) if fast else []), *extra]
    if not dry_run:  # which may be on a login node
        machines.check_available()
    save_dir = (save_dir or ROOT / "runs" / kind.run_name(experiment.name, extra)).absolute()
    check_arch(experiment, extra)
    shorter = shorter_warmup(experiment, extra)
    extra = [*shorter, *extra]
    arguments = fairseq_arguments(experiment, folder.absolute(), machines, save_dir, extra)
    if allow_changed:
        arguments += ["--allow-changed", ",".join(allow_changed)]
    read = checked(arguments, here=not dry_run)
    if experiment.get("common", "fp16") and not (read.fp16 or read.bf16 or read.amp or machines.quiet):
        print(f"note: float32 in place of the fp16 of {yaml}, which needs a GPU", file=sys.stderr)
    if shorter and not machines.quiet:
        warmup = experiment.get("lr_scheduler", "warmup_updates")
        run = number_of(read.max_update, "updates")
        note = f"note: {' '.join(shorter)} in place of the {warmup} of {yaml}: the run has {run}"
        print(note, file=sys.stderr)
    words = [f"{key}={value}" for key, value in machines.environment().items()]
    print(shlex.join([*words, str(Path(sys.prefix, "bin", "fairseq-train")), *arguments]))
    if plan:
        show_plan(experiment.name, read, machines, arguments, folder, save_dir, dry_run)
    if dry_run or plan:
        return save_dir
    prepared = kind.open_data(folder, ("train",) if "--disable-validation" in extra else ("train", "valid"))
    for flag in ("--restore-file", "--finetune-from-model"):
        if start := option(extra, flag):
            kind.check_start(Path(start), prepared)
    kind.check_data(read, prepared)
    last_update = read.max_update or None
    check_output_folder(save_dir, "--save-dir")
    save_dir.mkdir(parents=True, exist_ok=True)
    if machines.node_rank:  # place 0 looks after the folder; training waits for it
        start = None if fresh else newest_whole(save_dir)
        if not is_finished(start, last_update):
            run_training(arguments, save_dir, machines, last_update)
        return save_dir
    with run_lock(save_dir, 0 if machines.launcher == "spawn" else SECONDS_OF_LAST_TRY) as lock:
        failed_start = is_failed_start(save_dir)
        if not failed_start:
            check_vocabulary(prepared.folder, save_dir)
        if fresh:
            move_aside(save_dir)
        start = find_resume_point(save_dir)
        if start:
            check_same_run(str(save_dir), start.groups, convert_namespace_to_omegaconf(read))
        keep_data_record(prepared.folder, save_dir, start is not None, allow_changed)
        keep_vocabulary(prepared.folder, save_dir, failed_start)
        if is_finished(start, last_update):
            return save_dir
        if start:
            complete_save(start)
            restore = option(extra, "--restore-file")
            if restore and Path(restore).absolute().parent != save_dir:
                # Where the run began, perhaps with the weights alone; by now it has a checkpoint of its own.
                arguments = [word for word in arguments if not word.startswith("--reset-")]
                arguments += ["--restore-file", LAST]
        kind.record(save_dir, experiment.name, prepared, arguments)
        run_training(arguments, save_dir, machines, last_update, (lock,))
    return save_dir


def show_plan(
    name: str,
    read: Namespace,
    machines: Machines,
    arguments: Sequence[str],
    data: Path,
    save_dir: Path,
    dry_run: bool,
) -> None:
    """Print the plan of a run, from its own log if it has one, else from its first updates."""
    pace, corpus = pace_of(save_dir / machines.log_name), None
    if not dry_run:
        corpus = open_prepared(data, ("train",)).tokens("train")
        pace = pace or measured_pace(arguments, read, machines)
    print("\n".join(plan_lines(name, read, machines.processes, pace, corpus)))


@dataclass(frozen=True)
class Pace:
    """Of the updates in a log: tokens in each, tokens per second, the most bytes of a process or None."""

    tokens: float
    per_second: float
    memory: int | None


def pace_of(log: Path) -> Pace | None:
    """That of a log's later half, since the first updates warm up.

    None if the log has fewer updates than `PLANNED_UPDATES`.
    """
    if not log.is_file():
        return None
    records = read_log(log)
    inner = [x for x in records["train_inner"] if x["wps"]]
    if not inner or inner[-1]["num_updates"] < PLANNED_UPDATES:
        return None
    tokens, speeds = ([x[key] for x in inner[len(inner) // 2 :]] for key in ("wpb", "wps"))
    return Pace(statistics.median(tokens), statistics.median(speeds), peak_memory(records))


def measured_pace(arguments: Sequence[str], read: Namespace, machines: Machines) -> Pace | None:
    """Of the first `PLANNED_UPDATES` updates, trained in a folder that is removed."""
    last = PLANNED_UPDATES
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        words = [*arguments, "--max-update", str(last), "--log-interval", "2", "--log-format", "json"]
        words += ["--no-save", "--disable-validation", "--save-dir", folder, "--tensorboard-logdir", ""]
        if getattr(read, "warmup_updates", None):
            words += ["--warmup-updates", str(min(read.warmup_updates, last // 2))]
        run_training(words, Path(folder), machines, last)
        return pace_of(Path(folder, machines.log_name))


def plan_lines(
    name: str, read: Namespace, processes: int, pace: Pace | None, corpus: int | None
) -> list[str]:
    """The lines of the plan of the experiment `name`; `corpus` is the number of tokens of an epoch."""
    steps, updates = read.update_freq[-1], read.max_update
    if pace is not None:
        tokens = pace.tokens
    elif read.batch_size:
        tokens = float(processes * steps * read.batch_size * read.tokens_per_sample)
    else:
        tokens = float(processes * steps * read.max_tokens)
    lines = [f"updates   {updates:,} of {tokens:,.0f} tokens, {tokens * updates:,.0f} in all"]
    if corpus:
        lines.append(f"epochs    {tokens * updates / corpus:.1f} of {corpus:,} tokens")
    if pace is None:
        lines.append(f"hours     not measured; without --dry-run, {PLANNED_UPDATES} updates tell")
    else:
        minutes = tokens * updates / pace.per_second / 60
        time = f"minutes   {minutes:,.1f}" if minutes < 60 else f"hours     {minutes / 60:,.1f}"
        lines.append(f"{time} at {pace.per_second:,.0f} tokens per second")
        if pace.memory:
            lines.append(f"memory    {pace.memory / 2**30:.1f} GiB in each process")
    return lines + paper_lines(name, read.arch)


def paper_lines(name: str, architecture: str) -> list[str]:
    """The row of TransNormer's Table 4 and what counts as reproducing it; none for other experiments."""
    methods = {method.language_model: method.transnormer for method in METHODS if method.transnormer}
    if name.partition("/")[0] != PAPER or architecture not in methods:
        return []
    rows = {row["method"]: row for row in read_table("transnormer_04_wikitext103_lm")}
    row = rows[methods[architecture]]
    valid, test = float(row["ppl_val"]), float(row["ppl_test"])
    figures = f"perplexity {valid:.2f} valid, {test:.2f} test, {row['params_m']} M parameters"
    return [
        f"paper     {row['method']}: {figures}",
        f"accepted  {_band(valid)} valid, {_band(test)} test (2 % either way)",
    ]


def _band(perplexity: float) -> str:
    return f"{perplexity * (1 - BAND):.2f} to {perplexity * (1 + BAND):.2f}"


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
        run_fairseq("train", arguments, log, progress.feed, environment, held, ranks, progress.wait)
    except UserError:
        failed = True
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_resume(save_dir)) from None
    finally:
        progress.close()
        if machines.quiet and not failed:  # everything is in the log of rank 0
            log.unlink(missing_ok=True)


def how_to_resume(save_dir: Path) -> str:
    """What the same command would do after an interruption."""
    saved = newest_whole(save_dir)
    if saved is None:
        return "nothing was saved, so the same command starts at update 1"
    return f"the same command resumes after update {saved.updates:,}"


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


def check_task(command: str, config: Path, experiment: Experiment, given: str | None = None) -> None:
    """UserError for the YAML of a task, or one `given` in its place, that another command trains."""
    task = experiment.get("task", "_name")
    if task not in KINDS or KINDS[task].command != command:
        right = f"; train it with {KINDS[task].command}" if task in KINDS else ""
        raise UserError(f"{config} is not for {command}: its task is {task}{right}")
    if given and (given not in KINDS or KINDS[given].command != command):
        right = f"a YAML of it and {KINDS[given].command}" if given in KINDS else "fairseq-train"
        raise UserError(f"--task {given} is not for {command}; leave it out, or train with {right}")


def ending(save_dir: Path, experiment: Experiment, metric: str | None) -> str:
    """That a run is done, its best checkpoint by `metric` or the YAML's, and how to evaluate that."""
    metric = metric or experiment.get("checkpoint", "best_checkpoint_metric", "loss")
    kind = KINDS[experiment.get("task", "_name")]
    name = next((name for name in (BEST, LAST) if (save_dir / name).is_file()), None)
    if name is None:
        return f"done: {shown_path(save_dir)}, which holds no checkpoint"
    checkpoint = read_checkpoint(save_dir / name)
    text = f"done: {shown_path(checkpoint.path)} of update {checkpoint.updates:,}"
    if name == BEST and checkpoint.score is not None:
        text += f", the best on valid ({metric} {checkpoint.score:.4g}{' bits' if metric == 'loss' else ''})"
    data = Path(read_json(save_dir / DATA)["data"])
    words = [*kind.evaluation.split(), shown_path(save_dir / name), shown_path(data)]
    splits = read_json(data / PREPARED).get("splits", {}) if (data / PREPARED).is_file() else {}
    if splits and "test" not in splits:
        words += ["--split", "valid"]
    return f"{text}\nevaluate it: {shlex.join(words)}"
