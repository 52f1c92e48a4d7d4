"""Per-task behaviour of the training commands: the data, and the files of a run."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fairseq.data import data_utils
from fairseq.models import MODEL_REGISTRY

from conventions.content import check_prepared
from lab.data.prepared import PreparedData, identify, open_prepared, read_manifest
from lab.data.tokenization import tokenizer_fingerprint
from lab.errors import UserError
from lab.files import check_output, json_with, write_json
from lab.glue_tasks import GlueTask, glue_task
from lab.provenance import environment
from lab.run.checkpoint import (
    Checkpoint,
    encoder_flags,
    read_checkpoint,
    read_dictionary,
    read_encoder,
    read_language_model,
)
from lab.run.folder import GLUE_TASK, LRA_RUN
from lab.run.recipe import option
from user_dir.models import LRAModel
from user_dir.tasks.image_data import ImageData, open_image_data
from user_dir.tasks.lra import LRATask, LRATaskConfig
from user_dir.tasks.lra_data import LRAData, open_lra_data

Data = TypeVar("Data")


class Kind:
    """How models of a task are trained, here language models. The methods raise UserError.

    `command` trains, `evaluation` tests a checkpoint on data.
    """

    command, evaluation = "scripts/train_lm.sh", "scripts/eval_ppl.sh"

    def open_data(self, folder: Path, splits: Sequence[str]) -> Any:
        """Open a prepared folder and check these splits; the result has the `folder`."""
        return open_prepared(folder, tuple(splits))

    def check_data(self, read: Namespace, data: Any) -> None:
        """Refuse data that do not fit the arguments of fairseq-train, which `read` holds."""

    def check_start(self, path: Path, data: Any) -> None:
        """Refuse a checkpoint from which training on these data cannot start."""
        read_language_model(path)

    def model_flags(self, path: Path) -> list[str]:
        """The flags that build the model of a checkpoint to start from, where the YAML names none."""
        return []

    def record(self, save_dir: Path, name: str, data: Any, arguments: Sequence[str]) -> None:
        """Write the files that checkpoints lack to a run's folder; `name` is the experiment's."""

    def run_name(self, name: str, flags: Sequence[str]) -> str:
        """The folder of a run in runs/, for the experiment's name and the user's flags."""
        return name


class MaskedLM(Kind):
    """Encoders that are pre-trained."""

    command, evaluation = "scripts/pretrain_roberta.sh", "scripts/lab.sh evaluate mlm"

    def check_start(self, path: Path, data: PreparedData) -> None:
        """See `Kind`."""
        read_encoder(path)


@dataclass(frozen=True)
class GlueData:
    """A task prepared by data-prep/glue.sh."""

    task: GlueTask
    folder: Path
    manifest: dict[str, Any]

    @property
    def dev_splits(self) -> list[str]:
        """The dev splits that are there."""
        return [split for split in self.task.dev_splits if split in self.manifest["splits"]]


class Glue(Kind):
    """Encoders that are fine-tuned on a task of GLUE."""

    command, evaluation = "scripts/finetune_glue.sh", "scripts/lab.sh predict"

    def open_data(self, folder: Path, splits: Sequence[str]) -> GlueData:
        """See `Kind`."""
        manifest = read_manifest(folder)
        if manifest is None or "tokenizer_fingerprint" not in manifest:
            raise UserError(f"{folder} is not prepared; data-prep/glue.sh does it")
        for split in splits:
            if split not in manifest["splits"]:
                raise UserError(
                    f"{folder} has no split {split}; prepare the whole task with data-prep/glue.sh"
                )
        check_prepared(folder, *splits)
        return GlueData(glue_task(manifest["task"]), folder, manifest)

    def check_start(self, path: Path, data: GlueData) -> None:
        """UserError unless the checkpoint is an encoder with the data's tokeniser."""
        start, beside = read_encoder(path), path.parent
        fingerprint = data.manifest["tokenizer_fingerprint"]
        if (beside / "dict.txt").is_file() and tokenizer_fingerprint(beside) != fingerprint:
            raise UserError(
                f"{path} was not trained with the tokeniser of {data.folder}; prepare "
                f"the task again with data-prep/glue.sh --tokenizer-from {beside}"
            )
        size = len(read_dictionary(data.folder))
        if size != start.vocabulary:
            raise UserError(
                f"{data.folder} has a dictionary of {size} entries with the mask, but {path} was trained "
                f"with {start.vocabulary}: another tokeniser; prepare the task again with the encoder's"
            )

    def model_flags(self, path: Path) -> list[str]:
        """See `Kind`."""
        start = read_encoder(path)
        return [*encoder_flags(start), "--max-positions", str(start.max_positions)]

    def record(self, save_dir: Path, name: str, data: GlueData, arguments: Sequence[str]) -> None:
        """Note beside the weights which task they are for; prediction needs it."""
        kept = {key: data.manifest[key] for key in ("task", "tokenizer", "partial")}
        check_output(save_dir / GLUE_TASK, json_with(*kept), option="--save-dir")
        write_json(save_dir / GLUE_TASK, kept)


def cut_sentences(data: GlueData, longest: int) -> int:
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


def with_splits(data: Data, read: Callable[[Data, str], object], splits: Sequence[str]) -> Data:
    """The data, after reading each of the `splits` once; UserError if one is missing or damaged."""
    for split in splits:
        read(data, split)
    check_prepared(data.folder, *splits)
    return data


class WithPlan(Kind):
    """Models whose YAML is for any attention: a run is called after the layer plan of its command line."""

    def run_name(self, name: str, flags: Sequence[str]) -> str:
        """See `Kind`."""
        plan = option(flags, "--encoder-attention") or option(flags, "--decoder-attention")
        return f"{name}/{plan or 'default'}"


class LRA(WithPlan):
    """Models of Long Range Arena."""

    command, evaluation = "scripts/lab.sh train lra", "scripts/lab.sh evaluate lra"

    def open_data(self, folder: Path, splits: Sequence[str]) -> LRAData:
        """See `Kind`."""
        return with_splits(open_lra_data(folder), LRAData.split, splits)

    def check_data(self, read: Namespace, data: LRAData) -> None:
        """UserError if the data are of another task or another preset's pipeline."""
        task = LRATask.setup_task(LRATaskConfig(data=str(data.folder), lra_task=read.lra_task))
        task.check_pipeline(read.arch)

    def check_start(self, path: Path, data: LRAData) -> None:
        """See `Kind`."""
        check_lra_data(read_lra(path), data)

    def record(self, save_dir: Path, name: str, data: LRAData, arguments: Sequence[str]) -> None:
        """Write preset, attention, steps, seed, data and machine to `LRA_RUN`."""
        steps, seed = (option(arguments, flag) for flag in ("--max-update", "--seed"))
        check_output(save_dir / LRA_RUN, json_with("experiment", "preset", "data"), option="--save-dir")
        write_json(
            save_dir / LRA_RUN,
            {
                "experiment": name,
                "preset": option(arguments, "--arch"),
                "attention": option(arguments, "--encoder-attention"),
                "steps": steps and int(steps),
                "seed": seed and int(seed),
                "data": identify(data.folder),
                "environment": environment("cpu" if "--cpu" in arguments else "cuda"),
            },
        )


def read_lra(path: Path) -> Checkpoint:
    """A checkpoint of a model of Long Range Arena; UserError if it is not one, or damaged."""
    checkpoint = read_checkpoint(path)
    if not issubclass(MODEL_REGISTRY.get(checkpoint.architecture, object), LRAModel):
        raise UserError(f"{path} holds a {checkpoint.architecture}, which is not a model of Long Range Arena")
    return checkpoint


def check_lra_data(checkpoint: Checkpoint, data: LRAData) -> None:
    """UserError if a model of Long Range Arena was trained for another task or dictionary than the data's."""
    path, task = checkpoint.path, checkpoint.task_settings["lra_task"]
    if task != data.task:
        raise UserError(
            f"{path} was trained on {task}, but {data.folder} holds {data.task}; give the folder of its own "
            "task"
        )
    kept, given = path.with_name("dict.txt"), data.folder / "dict.txt"
    if kept.is_file() and (not given.is_file() or _symbols(kept) != _symbols(given)):
        raise UserError(
            f"{given} differs from {kept}, with which {path.name} was trained; "
            "give the folder with that dictionary"
        )


def _symbols(path: Path) -> list[str]:
    """A dictionary's symbols in their order; how often each occurs is the data's own."""
    return [line.rpartition(" ")[0] for line in path.read_text(encoding="utf-8").splitlines()]


class Pixels(WithPlan):
    """Models of images byte by byte."""

    command, evaluation = "scripts/lab.sh train images", "scripts/lab.sh evaluate images"
    task = "pixels"

    def open_data(self, folder: Path, splits: Sequence[str]) -> ImageData:
        """See `Kind`."""
        return with_splits(open_image_data(folder), ImageData.images, splits)

    def check_start(self, path: Path, data: ImageData) -> None:
        """Refuse a model of another task, or of images of another shape."""
        load_image_model(path, data.folder, self.task)


class Classification(Pixels):
    """Vision Transformers."""

    command, task = "scripts/lab.sh train vit", "image_classification"

    def open_data(self, folder: Path, splits: Sequence[str]) -> ImageData:
        """Opened as for `Pixels`, with the classes of the images checked, too."""
        return with_splits(open_image_data(folder), ImageData.labelled, splits)


def load_image_model(path: Path, data: Path | None, *tasks: str) -> Checkpoint:
    """Load the checkpoint of an image model, with `data` or the data of its training.

    No split is augmented. Raises UserError if it is damaged or of another task than `tasks`, or the data are
    of another shape.
    """
    checkpoint = read_checkpoint(path)
    if checkpoint.task_name not in tasks:
        raise UserError(
            f"{path} holds a model of the task {checkpoint.task_name}, not of {' or '.join(tasks)}"
        )
    data = data or Path(checkpoint.task_settings["data"])
    checkpoint = checkpoint.on(data, augmentation="none")
    checkpoint.model.eval()  # loaded here, where its task compares the shape of the images
    return checkpoint


# By the task of the YAML.
KINDS: dict[str, Kind] = {
    "language_modeling": Kind(),
    "carried_language_modeling": Kind(),
    "masked_lm": MaskedLM(),
    "sentence_prediction": Glue(),
    "lra": LRA(),
    Pixels.task: Pixels(),
    Classification.task: Classification(),
}
