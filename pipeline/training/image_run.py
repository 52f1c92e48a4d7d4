"""Prepared images and the checkpoints of models of them, as commands need them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from pipeline.errors import UserError
from pipeline.training.checkpoint import load_safely, readable, sections, updates
from user_dir.models import PixelModel, ViT
from user_dir.tasks.image_data import ImageData, open_image_data
from user_dir.tasks.image_task import ImageTask

PIXELS, CLASSIFICATION = "pixels", "image_classification"
SIDES = {PIXELS: "decoder", CLASSIFICATION: "encoder"}  # with which the settings of their models begin


def open_data(folder: Path, splits: Sequence[str]) -> ImageData:
    """A folder of data-prep/images.sh, these splits checked; UserError says what is wrong."""
    data = open_image_data(folder)
    for split in splits:
        data.images(split)
    return data


def open_labelled(folder: Path, splits: Sequence[str]) -> ImageData:
    """As `open_data`, the classes of the images checked, too."""
    data = open_image_data(folder)
    for split in splits:
        data.labelled(split)
    return data


@dataclass(frozen=True)
class ImageCheckpoint:
    """A model of images and its task, with the facts a result needs."""

    path: Path
    task_name: str
    model: PixelModel | ViT
    task: ImageTask
    architecture: str
    attention: str
    updates: int
    seed: int
    batch_size: int

    def about(self) -> dict[str, Any]:
        """What a result says about the model."""
        return {
            "architecture": self.architecture,
            "attention": self.attention,
            "parameters": sum(p.numel() for p in self.model.parameters() if p.requires_grad),
        }


def read_image_checkpoint(
    path: Path, data: Path | None, device: torch.device, tasks: Collection[str] = (PIXELS,)
) -> ImageCheckpoint:
    """Load a model in evaluation mode, its data being those of `data` or, without, of its training.

    Raises UserError if the checkpoint is damaged or of another task than `tasks`, or the data are of another
    shape.
    """
    state, configuration = load_safely(path)
    with readable(path):
        settings, task = sections(configuration)
        whole = OmegaConf.create(configuration, flags={"allow_objects": True})
        name, seed, batch_size = task["_name"], whole.common.seed, whole.dataset.batch_size
    if name not in tasks:
        raise UserError(f"{path} holds a model of the task {name}, not of {' or '.join(tasks)}")
    override = {} if data is None else {"data": str(data.absolute())}
    [model], _, loaded = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=override)
    side = SIDES[name]
    return ImageCheckpoint(
        path=path,
        task_name=name,
        model=model.to(device).eval(),
        task=loaded,
        architecture=str(settings["_name"]),
        attention=settings.get(f"{side}_attention") or model.default_plan(settings[f"{side}_layers"]),
        updates=updates(state),
        seed=seed,
        batch_size=batch_size or 1,
    )


def check_start(path: Path, data: ImageData, task_name: str = PIXELS) -> None:
    """UserError for a checkpoint from which training on `data` cannot start."""
    read_image_checkpoint(path, data.folder, torch.device("cpu"), (task_name,))


check_classifier_start = partial(check_start, task_name=CLASSIFICATION)
