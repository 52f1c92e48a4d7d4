"""The runs that the analyses need: the small encoders of configs/roberta_wikitext2 with further flags.

Gradients are not clipped and every update is logged, as in TransNormer's RoBERTa script: fairseq logs means
over an interval, which would hide most of the spread of gradient norms.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.commands.studies.analyse import COMMAND, GROUPS
from pipeline.console import number_of, runs_failed
from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.files import ROOT, begin, fingerprint, finished, once, shown_path
from pipeline.provenance import environment
from pipeline.studies.measured_runs import prepared_wikitext2, tokens_of
from pipeline.studies.parallel_runs import parallel_jobs, placement, run_all
from pipeline.training.figures import training_figures
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.process.resume import complete_save, find_resume_point
from pipeline.training.process.run_lock import run_lock
from pipeline.training.recipe import Experiment, option, read_experiment
from pipeline.training.save_dir import keep_vocabulary
from pipeline.training.train import Machines, fairseq_arguments, parsed

CONFIGS = ROOT / "configs" / "roberta_wikitext2"
VOCABULARY = 4000
NORM = ["--encoder-attention", "norm", "--norm-feature-map", "1+elu", "--norm-positions", "none"]
HALF = ["--fp16", "--fp16-no-flatten-grads", "--fp16-scale-window", "4"]
FIXED, HALF_FIXED = ("0.5", "1", "1.5", "2", "3", "4"), ("2", "4")
CHECKPOINTS = {"one-head": 20}  # saved in a run; 4 in the other groups
VALID_BATCHES = 16
OURS = {
    "--max-update": "use --updates",
    "--seed": "use --seeds",
    "--save-dir": "use --runs",
    "--log-interval": "the spread of gradients needs every update",
    "--clip-norm": "the spread of gradients needs them whole",
}


@dataclass(frozen=True)
class Run:
    """One training: `flags` are added to the YAML `config`."""

    group: str
    label: str
    config: str
    flags: tuple[str, ...] = ()
    seed: int = 1

    @property
    def name(self) -> str:
        """Also that of its folder."""
        return f"{self.group}-{self.label}-seed{self.seed}"

    def all_flags(self, updates: int, further: Sequence[str]) -> list[str]:
        """What is added to the YAML for a budget of `updates`; the user's `further` flags win."""
        words = ["--log-interval", "1", "--clip-norm", "0", "--seed", str(self.seed), *self.flags]
        every = max(1, updates // CHECKPOINTS.get(self.group, 4))
        words += ["--save-interval-updates", str(every), "--keep-interval-updates", "-1"]
        words += ["--max-update", str(updates), "--total-num-update", str(updates)]
        words += ["--warmup-updates", str(max(1, updates // 10)), "--validate-interval-updates", str(every)]
        return [*words, "--max-valid-steps", str(VALID_BATCHES), *further]


def fixed(exponent: str) -> tuple[str, ...]:
    """The flags of LLN whose exponents stay as they are."""
    return "--lln-alpha", exponent, "--lln-beta", exponent


def planned(seeds: int) -> list[Run]:
    """All runs, the first seed of every group first."""
    spread = (("softmax", ()), ("linear", ()), ("performer", ()), ("norm", tuple(NORM)))
    found = []
    for seed in range(1, seeds + 1):
        found += [
            Run("spread", name, "linear" if name == "norm" else name, flags, seed) for name, flags in spread
        ]
        if seed == 1:
            head = ("--encoder-attention-heads", "1")
            found += [Run("one-head", name, name, head) for name in ("softmax", "lln", "transnormer_t2")]
            statistics = ("--log-attention-statistics", "10")
            found += [Run("half", name, name, (*HALF, *statistics)) for name in ("softmax", "lln")]
            found += [Run("half", value, "lln", (*HALF, *fixed(value))) for value in HALF_FIXED]
        found.append(Run("fixed", "matched", "lln", (), seed))
        found += [Run("fixed", value, "lln", fixed(value), seed) for value in FIXED]
    return found


def chosen(runs: Sequence[Run], only: str | None) -> list[Run]:
    """Those of the groups or names `only`, with commas; UserError for one that is not there."""
    if only is None:
        return list(runs)
    names = only.split(",")
    known = {*GROUPS, *(run.name for run in runs)}
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"there is no run {unknown[0]!r}; choose some of {', '.join(sorted(known))}")
    return [run for run in runs if {run.group, run.name} & set(names)]


@dataclass(frozen=True)
class Plan:
    """How runs are made: their folder and data, how many at a time, and what the user has changed.

    `updates` is None for the budget of the YAML; `further` are flags of fairseq-train. Without `data` runs
    can be listed.
    """

    folder: Path
    data: PreparedData | None
    experiments: dict[str, Experiment]
    jobs: int
    updates: int | None
    further: tuple[str, ...]

    def flags(self, run: Run) -> list[str]:
        """Those of `run` with the budget."""
        settings = self.experiments[run.config]
        return run.all_flags(self.updates or int(settings.get("optimization", "max_update")), self.further)

    def arguments(self, run: Run) -> list[str]:
        """Those of `fairseq-train`."""
        assert self.data is not None
        machines = Machines(1 if torch.cuda.is_available() else 0)
        folder, flags = self.folder / run.name, self.flags(run)
        return fairseq_arguments(self.experiments[run.config], self.data.folder, machines, folder, flags)

    def fingerprint(self, run: Run) -> str:
        """A short hash of all that decides the run."""
        assert self.data is not None
        return fingerprint([self.experiments[run.config].settings, self.flags(run), tokens_of(self.data)])

    def record(self, run: Run) -> Path:
        """The JSON file of a finished run, beside its folder."""
        return self.folder / f"{run.name}.json"

    def is_done(self, run: Run) -> bool:
        """Whether it is finished; UserError if its record is of other settings, found out with data only."""
        if self.data is None:
            return self.record(run).is_file()
        return finished(self.record(run), self.fingerprint(run)) is not None


def train(plan: Plan, run: Run, place: int) -> str:
    """Train or resume `run`; its last validation loss in a few words."""
    folder, mark, arguments = plan.folder / run.name, plan.fingerprint(run), plan.arguments(run)
    begin(folder, COMMAND, mark)
    with run_lock(folder) as lock:
        keep_vocabulary(plan.data.folder, folder)
        if start := find_resume_point(folder):
            complete_save(start)
        limit = option(plan.flags(run), "--max-update")
        if start is None or start.updates < int(limit or 0):
            environ = placement(place, plan.jobs)
            run_fairseq("train", arguments, folder / "train.log", environment=environ, held=(lock,))

    def result() -> dict[str, Any]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        about = {"name": run.name, "group": run.group, "seed": run.seed, "config": run.config}
        figures = training_figures(folder / "train.log")
        return {**about, "flags": plan.flags(run), **figures, **environment(device)}

    loss = once(plan.record(run), mark, result, run.name)["curves"]["valid"][-1][1]
    return f"{loss:.3f} bits per masked token"


def run_runs(options: Namespace) -> None:
    """Train what is missing."""
    if given := [flag for flag in OURS if option(options.flags, flag) is not None]:
        raise UserError(f"{given[0]} differs from run to run; {OURS[given[0]]}")
    runs = chosen(planned(options.seeds), options.only)
    experiments = {name: read_experiment(CONFIGS / f"{name}.yaml") for name in {run.config for run in runs}}
    where = next(iter(experiments.values())).data_folder()
    data: PreparedData | None = None
    if not options.dry_run or (where / "preparation.json").is_file():
        data = prepared_wikitext2("roberta.sh", where, None, "--vocab-size", str(VOCABULARY))
    jobs = parallel_jobs(options.jobs or (None if torch.cuda.is_available() else 2))
    folder, further = options.runs.absolute(), tuple(options.flags)
    plan = Plan(folder, data, experiments, jobs, options.updates, further)
    for run in runs if data else ():
        parsed(plan.arguments(run))
    missing = [run for run in runs if not plan.is_done(run)]
    print(
        f"{number_of(len(runs), 'runs')}, {len(runs) - len(missing)} done before; "
        f"folder: {shown_path(plan.folder)}"
    )
    if options.dry_run:
        for run in runs:
            done = "done" if data else "done, but settings cannot be compared without data"
            print(f"  {run.name}: {'missing' if run in missing else done}; {' '.join(plan.flags(run))}")
        return
    plan.folder.mkdir(parents=True, exist_ok=True)
    failures = run_all(missing, jobs, partial(train, plan))
    if failures:
        raise runs_failed(failures)
