"""The GLUE sweep of an encoder: every task, learning rate and seed (the command behind finetune_glue.sh)."""

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq.data import data_utils
from omegaconf import OmegaConf

from pipeline.commands.studies.finetune_glue import parse
from pipeline.console import number_of, runs_failed
from pipeline.data.preparation import read_manifest
from pipeline.data.text_encoding import tokenizer_fingerprint
from pipeline.errors import UserError
from pipeline.files import ROOT, read_json, shown_path, write_atomically, write_json
from pipeline.glue_tasks import TASKS, glue_task
from pipeline.reports.glue import task_sentence, write_table
from pipeline.studies.glue_cell import Cell, TaskData, prune, run_cell
from pipeline.studies.glue_record import best_setting, sweep_record
from pipeline.studies.parallel_runs import parallel_jobs, placement, run_all
from pipeline.training.encoder_checkpoint import EncoderCheckpoint, read_dictionary, read_encoder
from pipeline.training.process.run_lock import SECONDS_TO_WRITE, run_lock
from pipeline.training.save_dir import whole_checkpoint

SWEEP = ROOT / "configs" / "glue_sweep.yaml"


@dataclass(frozen=True)
class Sweep:
    """What is tried for every task."""

    learning_rates: list[float]
    seeds: list[int]
    warmup_share: float
    max_updates: int | None

    def cells(self, encoder: EncoderCheckpoint, data: TaskData, out: Path) -> list[Cell]:
        """The runs of one task."""
        return [
            Cell(
                encoder, data, rate, seed, self.warmup_share, self.max_updates,
                out / data.task.name / f"lr{rate:g}-seed{seed}",
            )
            for rate in self.learning_rates
            for seed in self.seeds
        ]  # fmt: skip


def open_task(folder: Path, name: str, encoder: EncoderCheckpoint) -> TaskData:
    """A prepared task that fits the encoder; UserError if it is missing or cut by another tokeniser."""
    task, where = glue_task(name), folder / name
    manifest = read_manifest(where)
    if manifest is None or "tokenizer_fingerprint" not in manifest:
        raise UserError(f"{where} is not prepared; data-prep/glue.sh does it")
    beside = encoder.path.parent
    if (beside / "dict.txt").is_file() and tokenizer_fingerprint(beside) != manifest["tokenizer_fingerprint"]:
        raise UserError(
            f"{encoder.path} was trained with another tokeniser than {where} was prepared with; prepare the "
            f"task again with data-prep/glue.sh --tokenizer-from {beside}"
        )
    size = len(read_dictionary(where))
    if size != encoder.vocabulary:
        raise UserError(
            f"{where} has a dictionary of {size} entries with the mask, but {encoder.path} was trained with "
            f"{encoder.vocabulary}: another tokeniser; prepare the task again with the encoder's"
        )
    return TaskData(task, where, manifest)


def cut_sentences(data: TaskData, longest: int) -> int:
    """How many training and dev examples have more tokens than the encoder's positions."""
    count = 0
    for split in ("train", *data.dev_splits):
        sizes = 1
        for part in ("input0", "input1"):
            if (data.folder / part).is_dir():
                dataset = data_utils.load_indexed_dataset(str(data.folder / part / split), None)
                sizes = sizes + dataset.sizes + (part == "input1")
        count += int((sizes > longest).sum())
    return count


def run_one(cell: Cell, place: int, jobs: int) -> str:
    """Run a cell at one of `jobs` places; its figures in a few words."""
    print(f"{cell.name}: started, log {shown_path(cell.folder / 'train.log')}", flush=True)
    return task_sentence(run_cell(cell, placement(place, jobs)))


def read_sweep(options: argparse.Namespace) -> Sweep:
    """The sweep of configs/glue_sweep.yaml with what the command line says otherwise."""
    given = OmegaConf.to_container(OmegaConf.load(SWEEP))
    return Sweep(
        options.learning_rates or given["learning_rates"],
        options.seeds or given["seeds"],
        given["warmup_share"],
        options.max_update,
    )


def find_tasks(options: argparse.Namespace, encoder: EncoderCheckpoint) -> list[TaskData]:
    """The tasks asked for; with "all" those that are prepared."""
    folder = (options.data or ROOT / "data" / "glue").absolute()
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; prepare it with data-prep/glue.sh, or name one with --data")
    names = options.task.split(",")
    if names == ["all"]:
        names = [name for name in TASKS if (folder / name / "preparation.json").is_file()]
        if not names:
            raise UserError(f"{folder} holds no prepared task; data-prep/glue.sh makes them")
    return [open_task(folder, glue_task(name).name, encoder) for name in names]


def finetune(options: argparse.Namespace) -> dict[str, Any]:
    """Run what is missing of the sweep and write its table; the record."""
    jobs = parallel_jobs(options.jobs)
    encoder = read_encoder(whole_checkpoint(options.checkpoint.absolute()))
    tasks = find_tasks(options, encoder)
    out = (options.out or encoder.path.parent / "glue" / encoder.path.stem).absolute()
    sweep = read_sweep(options)
    cells = {data.task.name: sweep.cells(encoder, data, out) for data in tasks}
    missing = [cell for group in cells.values() for cell in group if cell.result() is None]
    total = sum(map(len, cells.values()))
    print(
        f"{encoder.architecture}, {number_of(total, 'runs')}, {total - len(missing)} done before; "
        f"results: {out}"
    )
    for data in tasks:
        if count := cut_sentences(data, encoder.max_positions):
            print(
                f"{data.task.name}: {number_of(count, 'examples')} with more tokens than the "
                f"{encoder.max_positions} positions of the encoder will be cut"
            )
    failures = run_all(missing, jobs, partial(run_one, jobs=jobs))
    results = {name: [r for r in (cell.result() for cell in group) if r] for name, group in cells.items()}
    if failures and not any(results.values()):
        raise runs_failed(failures, every=True)
    record = sweep_record(encoder, tasks, results)
    with run_lock(out, SECONDS_TO_WRITE):  # sweeps of other tasks may share the folder
        record["tasks"] = earlier_tasks(out / "glue.json", encoder) | record["tasks"]
        write_json(out / "glue.json", record)
        table = write_table(record)
        write_atomically(out / "glue.md", (table + "\n").encode())
    print(f"{table}\n\nwritten: {shown_path(out / 'glue.json')}, {shown_path(out / 'glue.md')}")
    keep_best(cells, record)
    if failures:
        raise runs_failed(failures)
    return record


def earlier_tasks(path: Path, encoder: EncoderCheckpoint) -> dict[str, Any]:
    """What an earlier sweep of the same encoder has written there, so that one table holds all its tasks."""
    record = read_json(path) if path.is_file() else {}
    return record["tasks"] if record.get("encoder") == encoder.fingerprint else {}


def keep_best(cells: dict[str, list[Cell]], record: dict[str, Any]) -> None:
    """Of every task with all its results, keep the weights of the best run only."""
    for name, group in cells.items():
        if all(cell.result() for cell in group):
            rate, seed = best_setting(record["tasks"][name])
            best = next(cell for cell in group if (cell.learning_rate, cell.seed) == (rate, seed))
            prune(group, best)
            print(f"{name}: best weights in {shown_path(best.folder)}")


def main() -> None:
    """Entry point."""
    finetune(parse(sys.argv[1:]))
