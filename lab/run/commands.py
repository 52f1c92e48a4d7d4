"""The commands that train, and `--plan`: tokens, hours and memory of a run, and the paper's row beside it."""

import contextlib
import os
import statistics
import tempfile
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

from lab.data.prepared import open_prepared
from lab.files import shown_path
from lab.methods import METHODS
from lab.papers import read_table
from lab.run.folder import RunFolder
from lab.run.launch import machines_of
from lab.run.log import peak_memory, read_log, settled
from lab.run.plan import Request, RunPlan, check_task, checked_settings, planned
from lab.run.recipe import option
from lab.run.train import ending, run_training, train_alone

PLANNED_UPDATES = 20  # trained by --plan to find the pace
PAPER = "wikitext103"
BAND = 0.02
"""Twice the distance between the paper's three best perplexities, a quarter of that to the next."""


def main(options: Namespace) -> None:
    """Train a model, and say how to evaluate the result."""
    experiment = checked_settings(options.experiment)
    check_task(options.command, options.config, experiment, option(options.flags, "--task"))
    machines, shows_pace = machines_of(options), getattr(options, "plan", False)  # of language models alone
    asked = Request(
        experiment,
        options.data,
        machines,
        options.save_dir,
        options.flags,
        options.fresh,
        options.allow_changed,
        options.fast,
        here=not options.dry_run,
    )
    with open(os.devnull, "w") as nowhere, contextlib.ExitStack() as stack:
        if machines.quiet:
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        plan = planned(asked)
        if shows_pace:
            show_pace(plan, options.dry_run)
        elif not options.dry_run:
            train_alone(plan.opened())
            if not machines.node_rank:
                print(ending(plan))


def show_pace(plan: RunPlan, dry_run: bool) -> None:
    """Print the cost of a run, from its own log if it has one, else from its first updates."""
    log, corpus = plan.folder.path / plan.machines.log_name, None
    if pace := pace_of(log):
        print(f"pace and batch are those of the run in {shown_path(log)}; --save-dir names another")
    if not dry_run:
        corpus = open_prepared(plan.data_folder, ("train",)).tokens("train")
        pace = pace or measured_pace(plan)
    print("\n".join(plan_lines(plan.name, plan.read, plan.machines.processes, pace, corpus)))


@dataclass(frozen=True)
class Pace:
    """Pace of the updates in a log: tokens per update and per second, the most bytes of a process or None."""

    tokens: float
    per_second: float
    memory: int | None


def pace_of(log: Path) -> Pace | None:
    """The pace in a log's later half, since the first updates warm up.

    None if the log has fewer updates than `PLANNED_UPDATES`.
    """
    if not log.is_file():
        return None
    records = read_log(log)
    inner = settled(records)
    if not inner or inner[-1]["num_updates"] < PLANNED_UPDATES:
        return None
    tokens, speeds = ([x[key] for x in inner] for key in ("wpb", "wps"))
    return Pace(statistics.median(tokens), statistics.median(speeds), peak_memory(records))


def measured_pace(plan: RunPlan) -> Pace | None:
    """The pace of the first `PLANNED_UPDATES` updates, trained in a temporary folder."""
    last = PLANNED_UPDATES
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        words = [*plan.arguments, "--max-update", str(last), "--log-interval", "2", "--log-format", "json"]
        words += ["--no-save", "--disable-validation", "--save-dir", folder, "--tensorboard-logdir", ""]
        if getattr(plan.read, "warmup_updates", None):
            words += ["--warmup-updates", str(min(plan.read.warmup_updates, last // 2))]
        run_training(replace(plan, folder=RunFolder(Path(folder))), words, last)
        return pace_of(Path(folder, plan.machines.log_name))


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
