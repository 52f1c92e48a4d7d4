"""Long Range Arena: tasks x attentions x seeds (the command behind lra_table.sh)."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.commands.studies.lra_table import parse
from pipeline.console import runs_failed
from pipeline.data.lra.tasks import TASKS
from pipeline.errors import UserError
from pipeline.evaluation.lra import evaluate
from pipeline.files import (
    ROOT,
    shown_path,
    write_atomically,
)
from pipeline.provenance import environment
from pipeline.reports.lra import FIVE, check_alike, read_cells, write_table
from pipeline.studies.measured_cell import (
    DataCell,
    check_flags,
    first_seed,
    run_missing,
    train_and_measure,
)
from pipeline.studies.parallel_runs import parallel_jobs
from pipeline.training.figures import peak_memory, read_log, training_seconds
from pipeline.training.lra_attentions import PARTS, attention_flags, read_attentions
from pipeline.training.lra_run import describe_data, open_data, read_lra_checkpoint, record
from pipeline.training.process.resume import BEST, LAST
from pipeline.training.process.run_lock import SECONDS_TO_WRITE, run_lock
from pipeline.training.recipe import Experiment, option, read_experiment
from pipeline.training.save_dir import keep_vocabulary, whole_checkpoint
from user_dir.models.lra.presets import SIZE
from user_dir.tasks.lra_data import LRAData

COMMAND = "lra_table.sh"
# Flags that differ from run to run, and the option to use instead.
OURS = {"--encoder-attention": "--attention", "--seed": "--seeds", "--save-dir": "--out"}


class LRACell(DataCell):
    """One run of the sweep; its method is an attention."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.data.task}, {self.method}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where it trains; its result lies beside it."""
        return self.out / self.data.task / self.method / f"seed{self.seed}"

    @property
    def has_valid(self) -> bool:
        """Whether there is a split to choose the checkpoint on; without it the last one is tested."""
        return "valid" in self.data.manifest["splits"]

    def own_flags(self) -> list[str]:
        """What is added to the YAML."""
        preset = self.experiment.get("model", "_name")
        layers = option([*self.experiment.flags(), *self.flags], "--encoder-layers")
        flags = [*attention_flags(preset, self.method, int(layers or SIZE["encoder_layers"])), *self.flags]
        return [*flags, "--seed", str(self.seed), *([] if self.has_valid else ["--disable-validation"])]

    def setting(self) -> dict[str, Any]:
        """What decides which results it may share a table with, as its own will have it."""
        preset = self.experiment.get("model", "_name")
        steps = option([*self.experiment.flags(), *self.flags], "--max-update")
        about = {"task": self.data.task, "data": describe_data(self.data)}
        return {**about, "preset": preset, "flags": list(self.flags), "steps": int(steps or 0)}

    def prepare(self, arguments: Sequence[str]) -> None:
        """See `Cell.prepare`: the vocabulary, and what the run is."""
        keep_vocabulary(self.data.folder, self.folder)
        record(self.folder, self.experiment.name, self.data, arguments)

    def decisive(self) -> list[Any]:
        """See `Cell.decisive`: the data, too."""
        about = {**describe_data(self.data), "sources": self.data.manifest["sources"]}
        return [*super().decisive(), about]


def run_cell(cell: LRACell, place: int, jobs: int) -> str:
    """Train (or resume) and test a cell at one of `jobs` places; its accuracy in a few words."""
    result = train_and_measure(cell, COMMAND, place, jobs, partial(tested, cell, place))
    return f"{result['accuracy']:.2f} % of {result['examples']:,} right (test)"


def tested(cell: LRACell, place: int) -> dict[str, Any]:
    """The result of a trained cell, as a table needs it."""
    device = torch.device("cuda", place) if torch.cuda.is_available() else torch.device("cpu")
    path = whole_checkpoint(cell.folder / (BEST if cell.has_valid else LAST))
    checkpoint = read_lra_checkpoint(path)
    found = evaluate(checkpoint, cell.data, "test", device)
    examples, sizes = found["data"]["examples"], TASKS[cell.data.task].sizes
    log = cell.folder / "train.log"
    return {
        **found,
        "checkpoint": path.name,
        "attention": cell.method,
        "plan": checkpoint.attention,
        "flags": list(cell.flags),
        "chosen_on_valid": cell.has_valid,
        "published_sizes": sum(examples.values()) == sum(sizes.values()),
        "train_seconds": training_seconds(log),
        "peak_memory_bytes": peak_memory(read_log(log)),
        "environment": environment(device.type),
    }


def read_preset(folder: Path, tasks: str | None, data: Path) -> list[tuple[Experiment, LRAData]]:
    """YAML and data of each task asked for; without `tasks` those of the five that are prepared."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; choose configs/lra_skyformer or configs/lra_state_space")
    if unknown := [name for name in (tasks or "").split(",") if tasks and name not in TASKS]:
        raise UserError(f"there is no task {unknown[0]!r}; choose some of {', '.join(TASKS)}")
    chosen = []
    for name in dict.fromkeys(tasks.split(",")) if tasks else FIVE:
        experiment = read_experiment(folder / f"{name.replace('-', '_')}.yaml")
        if experiment.get("model", "_name") not in PARTS:
            raise UserError(f"{folder} is no preset of Long Range Arena, such as configs/lra_skyformer")
        where = data / Path(experiment.get("task", "data", name)).name
        if tasks or where.is_dir():
            chosen.append((experiment, open_task(where, name)))
    if not chosen:
        raise UserError(f"{data} holds no prepared task; data-prep/lra.sh makes them")
    return chosen


def open_task(folder: Path, name: str) -> LRAData:
    """The prepared task `name`, its splits checked; UserError if the folder holds another, or is damaged."""
    data = open_data(folder, ("train", "test"))
    if data.task != name:
        raise UserError(f"{folder} holds {data.task}, not {name}; prepare it with data-prep/lra.sh")
    if "valid" in data.manifest["splits"]:
        data.split("valid")
    return data


def sweep(options: Namespace, flags: Sequence[str]) -> None:
    """Run what is missing and write the table of all that lies in the folder."""
    check_flags(flags, OURS)
    jobs, attentions = parallel_jobs(options.jobs), read_attentions(options.attention)
    chosen = read_preset(options.preset, options.tasks, (options.data or ROOT / "data" / "lra").absolute())
    preset = chosen[0][0].get("model", "_name")
    out = (options.out or ROOT / "runs" / "lra_table" / preset).absolute()
    cells = [
        LRACell(experiment, attention, first_seed(experiment) + number, tuple(flags), out, data)
        for number in range(options.seeds)
        for experiment, data in chosen
        for attention in attentions
    ]
    check_alike([*read_cells(out), *(cell.setting() for cell in cells)])
    failures = run_missing(preset, cells, jobs, partial(run_cell, jobs=jobs), out)
    if done := read_cells(out):
        table = write_table(done)
        with run_lock(out, SECONDS_TO_WRITE):  # sweeps of other tasks may share the folder
            write_atomically(out / "lra.md", (table + "\n").encode())
        print(f"\n{table}\n\nwritten: {shown_path(out / 'lra.md')}")
    if failures:
        raise runs_failed(failures)


def main() -> None:
    """Entry point."""
    sweep(*parse(sys.argv[1:]))
