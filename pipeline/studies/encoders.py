"""The measured encoders: pre-train, fine-tune the papers' own, one JSON each (behind measure_roberta.sh)."""

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from pipeline.commands.studies.measure_roberta import RESULTS, parse
from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.evaluation import masked_lm as eval_mlm
from pipeline.evaluation.classification import read_targets, score
from pipeline.files import FINGERPRINT, ROOT, fingerprint, finished, once, shown_path
from pipeline.glue_tasks import GlueTask, glue_task
from pipeline.methods import ENCODERS, MAIN_ENCODERS
from pipeline.provenance import environment, portable_command
from pipeline.reports import documents as make_results
from pipeline.reports.encoders import glue_section, runs_section
from pipeline.studies.glue_cell import recipe
from pipeline.studies.glue_sweep import finetune
from pipeline.studies.measured_runs import (
    EVALUATED,
    corpus_of,
    prepare,
    prepared_wikitext2,
    pretraining_fingerprint,
)
from pipeline.training.encoder_checkpoint import read_encoder
from pipeline.training.figures import training_figures
from pipeline.training.recipe import Experiment, read_experiment
from pipeline.training.train import Machines, train

CONFIGS = ROOT / "configs" / "roberta_wikitext2"
GLUE = ROOT / "configs" / "roberta_wikitext2_glue.yaml"
RUNS = ROOT / "runs" / "measured" / "roberta_wikitext2"
GLUE_DATA = ROOT / "data" / "glue-wikitext-2-roberta-4000"
VOCABULARY = 4000


def all_names() -> list[str]:
    """The configurations, in the order of the tables."""
    return list(ENCODERS)


def pretraining_data(folder: Path, source: Path | None) -> PreparedData:
    """The corpus, prepared first if need be from `source` (or by download)."""
    return prepared_wikitext2("roberta.sh", folder, source, "--vocab-size", str(VOCABULARY))


def missing_tasks() -> list[str]:
    """The tasks to fine-tune on that are not prepared."""
    tasks = OmegaConf.to_container(OmegaConf.load(GLUE))["tasks"]
    return [task for task in tasks if not (GLUE_DATA / task / "preparation.json").is_file()]


def check_glue(names: Sequence[str], options: argparse.Namespace) -> None:
    """UserError, before hours of work, if GLUE is needed for `names` and cannot be prepared."""
    open_ones = [name for name in names if not (options.out / f"{name}.json").is_file()]
    needed = not options.pretrain_only and not set(open_ones).isdisjoint(MAIN_ENCODERS)
    missing = missing_tasks() if needed else []
    if missing and options.glue is None:
        raise UserError(
            f"{', '.join(missing)} are not prepared; name the folder of GLUE with --glue, or stop before it "
            "with --pretrain-only"
        )
    absent = [task for task in missing if not (options.glue / task).is_dir()]
    if absent:
        raise UserError(f"{options.glue} has no folder {absent[0]}; name the folder of GLUE with --glue")


def glue_data(source: Path | None, tokenizer_from: Path, tasks: Sequence[str]) -> Path:
    """The GLUE tasks, prepared first if need be from `source`."""
    missing = [task for task in tasks if not (GLUE_DATA / task / "preparation.json").is_file()]
    if missing:
        if source is None:
            raise UserError(f"{', '.join(missing)} are not prepared; name the folder of GLUE with --glue")
        places = (source.absolute(), "--dest", GLUE_DATA, "--tokenizer-from", tokenizer_from)
        for task in missing:
            prepare("glue.sh", *places, "--task", task)
    return GLUE_DATA


def result_fingerprint(name: str, pretraining: str) -> str:
    """That of a result, of which pre-training decides a part or all."""
    if name not in MAIN_ENCODERS:
        return pretraining
    return fingerprint([pretraining, OmegaConf.to_container(OmegaConf.load(GLUE)), recipe().settings])


def pretrain(
    name: str, experiment: Experiment, data: PreparedData, updates: int, save_dir: Path
) -> dict[str, Any]:
    """Train (or resume) in `save_dir` and evaluate: the first half of a record."""
    flags = ["--max-update", str(updates)]
    machines = Machines(torch.cuda.device_count())
    train(CONFIGS / f"{name}.yaml", data.folder, machines, save_dir, flags)
    encoder = read_encoder(save_dir / "checkpoint_best.pt")
    evaluated = eval_mlm.evaluate(encoder, data, EVALUATED)
    chosen = ("masked_tokens", "loss_nats_per_token", "perplexity_per_token")
    return {
        "experiment": CONFIGS.name,
        "name": name,
        "architecture": encoder.architecture,
        "seed": experiment.get("common", "seed"),
        "parameters": evaluated["test"]["parameters"],
        "updates": updates,
        "best_update": encoder.updates,
        **{split: {key: evaluated[split][key] for key in chosen} for split in EVALUATED},
        **training_figures(save_dir / "train.log"),
        "data": corpus_of(data),
        "settings": experiment.settings,
        "train_command": portable_command(
            ["scripts/pretrain_roberta.sh", str(CONFIGS / f"{name}.yaml"), *flags]
        ),
    }


def fine_tune(checkpoint: Path, data: Path) -> dict[str, Any]:
    """Fine-tune on every task: the best of each, as `finetune_glue` records it, without the single runs."""
    own = OmegaConf.to_container(OmegaConf.load(GLUE))
    found = {}
    for task in own["tasks"]:
        options = Namespace(
            checkpoint=checkpoint, task=task, data=data, out=None, jobs=max(1, torch.cuda.device_count()),
            learning_rates=own["learning_rates"], seeds=own["seeds"], max_update=own["max_updates"].get(task),
        )  # fmt: skip
        result = finetune(options)["tasks"][task]
        found[task] = {
            "examples": result["examples"],
            "best": result["best"],
            "updates": result["cells"][0]["updates"],
            "majority": majority(glue_task(task), data / task),
            "runs": [
                {key: cell[key] for key in ("learning_rate", "seed", "dev")} for cell in result["cells"]
            ],
        }
    return found


def majority(task: GlueTask, folder: Path) -> dict[str, float]:
    """The dev metrics of always answering the train set's most frequent class."""
    train, dev = (read_targets(folder, split, task) for split in ("train", "valid"))
    return score(task, np.full_like(dev, np.bincount(train).argmax()), dev)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The result of one encoder, measured unless it is there; with --pretrain-only it may lack GLUE."""
    experiment = read_experiment(CONFIGS / f"{name}.yaml")
    data = pretraining_data(experiment.data_folder(), options.source)
    updates = options.updates or int(experiment.get("optimization", "max_update"))
    pretraining = pretraining_fingerprint(experiment, data, updates)
    mark = result_fingerprint(name, pretraining)
    result = options.out.absolute() / f"{name}.json"
    part = RUNS / f"{name}-{pretraining}" / "pretraining.json"

    def pretrained() -> dict[str, Any]:
        make = partial(pretrain, name, experiment, data, updates, part.parent)
        record = once(part, pretraining, make, f"{name}, pre-training")
        print(f"{name}: test masked-LM perplexity {record['test']['perplexity_per_token']:.2f}", flush=True)
        return record

    def complete() -> dict[str, Any]:
        record = {**pretrained(), FINGERPRINT: mark}
        if name in MAIN_ENCODERS:
            tasks = OmegaConf.to_container(OmegaConf.load(GLUE))["tasks"]
            folder = glue_data(options.glue, data.folder, tasks)
            record["glue"] = fine_tune(part.with_name("checkpoint_best.pt"), folder)
        return {**record, **environment("cuda" if torch.cuda.is_available() else "cpu")}

    if options.pretrain_only and finished(result, mark) is None:
        return {**pretrained(), **environment("cuda" if torch.cuda.is_available() else "cpu")}
    record = once(result, mark, complete, name)
    print(f"{name}: in {shown_path(result)}", flush=True)
    return record


def main() -> None:
    """Measure what is not measured yet, then show or make the tables."""
    options = parse(sys.argv[1:])
    names = [options.only] if options.only else all_names()
    check_glue(names, options)
    print(f"{len(names)} encoders; results: {shown_path(options.out)}", flush=True)
    records = [measure(name, options) for name in names]
    if options.out.absolute() == RESULTS:
        make_results.write_all()
        return
    print(f"\n{runs_section(records)}\n")
    if any("glue" in record for record in records):
        print(f"{glue_section(records)}\n")
    print(f"results: {shown_path(options.out)}")
