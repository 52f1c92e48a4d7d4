"""A run on Long Range Arena: its data, what is recorded of it, and its checkpoints."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.models import MODEL_REGISTRY
from omegaconf import OmegaConf

from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.outputs import check_output, json_with
from pipeline.provenance import environment
from pipeline.training.checkpoint import default_settings, load_safely, sections, updates
from pipeline.training.recipe import option
from user_dir.models import LRAModel
from user_dir.tasks.lra import PIPELINES, LRATask, LRATaskConfig
from user_dir.tasks.lra_data import LRAData, open_lra_data

RECORD = "run.json"
# Fields that the model fills in from the data, or that have a place of their own in a record.
NOT_OPTIONS = (
    "_name",
    "encoder_attention",
    "max_positions",
    "vocabulary_size",
    "glu_dim",
    "classifier_dim",
    "allow_changed",
)


def open_data(folder: Path, splits: Sequence[str]) -> LRAData:
    """A folder of data-prep/lra.sh, these splits checked; UserError says what is wrong."""
    data = open_lra_data(folder)
    for split in splits:
        data.split(split)
    return data


def check_data(read: Namespace, data: LRAData) -> None:
    """UserError for data of another task, or of the other preset's pipeline, than training asks for."""
    LRATask.setup_task(LRATaskConfig(data=str(data.folder), lra_task=read.lra_task))
    wanted = PIPELINES.get(read.arch)
    if wanted and data.pipeline not in (wanted, "both"):
        raise UserError(
            f"{data.folder} was prepared for the pipeline {data.pipeline}, but {read.arch} is of {wanted}; "
            f"prepare it with data-prep/lra.sh --pipeline {wanted}"
        )


def describe_data(data: LRAData) -> dict[str, Any]:
    """What a table must say about the data of a run: where they come from, and how many they are."""
    kept = ("task", "pipeline", "origin", "seed", "length", "end_token", "close_brackets", "valid_fraction")
    examples = {name: split["examples"] for name, split in data.manifest["splits"].items()}
    return {**{key: data.manifest[key] for key in kept if key in data.manifest}, "examples": examples}


def record(save_dir: Path, name: str, data: LRAData, arguments: Sequence[str]) -> None:
    """Write preset, attention, steps, seed, data and machine to `run.json` in the folder of a run."""
    steps, seed = (option(arguments, flag) for flag in ("--max-update", "--seed"))
    check_output(save_dir / RECORD, json_with("experiment", "preset", "data"), option="--save-dir")
    machine = environment("cpu" if "--cpu" in arguments else "cuda")
    write_json(
        save_dir / RECORD,
        {
            "experiment": name,
            "preset": option(arguments, "--arch"),
            "attention": option(arguments, "--encoder-attention"),
            "steps": steps and int(steps),
            "seed": seed and int(seed),
            "data": describe_data(data),
            "environment": machine,
        },
    )


@dataclass(frozen=True)
class LRACheckpoint:
    """The facts about a model of Long Range Arena; `options` are those that differ from the preset's."""

    path: Path
    task: str
    preset: str
    attention: str
    options: dict[str, Any]
    updates: int
    steps: int
    seed: int
    batch_size: int

    def check_data(self, data: LRAData) -> None:
        """UserError if the model was trained for another task or dictionary than the data's."""
        if self.task != data.task:
            raise UserError(
                f"{self.path} was trained on {self.task}, but {data.folder} holds {data.task}; "
                "give the folder of its own task"
            )
        kept, given = self.path.with_name("dict.txt"), data.folder / "dict.txt"
        if kept.is_file() and (not given.is_file() or _symbols(kept) != _symbols(given)):
            raise UserError(
                f"{given} differs from {kept}, with which {self.path.name} was trained; "
                "give the folder with that dictionary"
            )


def _symbols(path: Path) -> list[str]:
    """A dictionary's symbols in their order; how often each occurs is the data's own."""
    return [line.rpartition(" ")[0] for line in path.read_text(encoding="utf-8").splitlines()]


def read_lra_checkpoint(path: Path) -> LRACheckpoint:
    """Look into a checkpoint; UserError if it is none of Long Range Arena, or damaged."""
    state, configuration = load_safely(path)
    model, task = sections(configuration)
    preset = str(model.get("_name") or model.get("arch"))
    kind = MODEL_REGISTRY.get(preset, object)
    if not issubclass(kind, LRAModel):
        raise UserError(f"{path} holds a {preset}, which is no model of Long Range Arena")
    whole = OmegaConf.create(configuration, flags={"allow_objects": True})
    defaults = default_settings(preset, model)
    return LRACheckpoint(
        path=path,
        task=task["lra_task"],
        preset=preset,
        attention=model.get("encoder_attention") or kind.default_plan(model["encoder_layers"]),
        options={
            key: model[key]
            for key, default in defaults.items()
            if key in model and key not in NOT_OPTIONS and model[key] != default
        },
        updates=updates(state),
        steps=whole.optimization.max_update,
        seed=whole.common.seed,
        batch_size=whole.dataset.batch_size,
    )


def check_start(path: Path, data: LRAData) -> None:
    """UserError for a checkpoint from which training on `data` cannot start."""
    read_lra_checkpoint(path).check_data(data)
