"""A fine-tuning run on a GLUE task: its data, the encoder that it starts from, and what it keeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data import data_utils

from pipeline.data.preparation import read_manifest
from pipeline.data.text_encoding import tokenizer_fingerprint
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.glue_tasks import GlueTask, glue_task
from pipeline.training.encoder_checkpoint import TASK_FILE, read_dictionary, read_encoder


@dataclass(frozen=True)
class TaskData:
    """A task prepared by data-prep/glue.sh."""

    task: GlueTask
    folder: Path
    manifest: dict[str, Any]

    @property
    def dev_splits(self) -> list[str]:
        """The dev splits that are there."""
        return [split for split in self.task.dev_splits if split in self.manifest["splits"]]


def open_data(folder: Path, splits: Sequence[str]) -> TaskData:
    """A folder of data-prep/glue.sh, these splits checked; UserError says what is wrong."""
    manifest = read_manifest(folder)
    if manifest is None or "tokenizer_fingerprint" not in manifest:
        raise UserError(f"{folder} is not prepared; data-prep/glue.sh does it")
    for split in splits:
        if split not in manifest["splits"]:
            raise UserError(f"{folder} has no split {split}; prepare the whole task with data-prep/glue.sh")
    return TaskData(glue_task(manifest["task"]), folder, manifest)


def check_start(path: Path, data: TaskData) -> None:
    """UserError for a checkpoint that is no encoder, or one of another tokeniser than the data."""
    encoder, beside = read_encoder(path), path.parent
    fingerprint = data.manifest["tokenizer_fingerprint"]
    if (beside / "dict.txt").is_file() and tokenizer_fingerprint(beside) != fingerprint:
        raise UserError(
            f"{path} was trained with another tokeniser than {data.folder} was prepared with; prepare the "
            f"task again with data-prep/glue.sh --tokenizer-from {beside}"
        )
    size = len(read_dictionary(data.folder))
    if size != encoder.vocabulary:
        raise UserError(
            f"{data.folder} has a dictionary of {size} entries with the mask, but {path} was trained with "
            f"{encoder.vocabulary}: another tokeniser; prepare the task again with the encoder's"
        )


def model_flags(path: Path) -> list[str]:
    """The flags that build the encoder of a checkpoint."""
    encoder = read_encoder(path)
    return [*encoder.flags(), "--max-positions", str(encoder.max_positions)]


def record(save_dir: Path, name: str, data: TaskData, arguments: Sequence[str]) -> None:
    """Write beside the weights which task they are for, as prediction must know."""
    write_json(save_dir / TASK_FILE, {key: data.manifest[key] for key in ("task", "tokenizer", "partial")})


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
