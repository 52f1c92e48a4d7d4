"""Small prepared images and models of them for the tests."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tests.helpers.build import build_model
from user_dir.tasks.image_classification import ImageClassificationConfig, ImageClassificationTask
from user_dir.tasks.image_data import ImageShape
from user_dir.tasks.pixels import PixelTask, PixelTaskConfig

SMALL = {
    "decoder_embed_dim": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_embed_dim": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
SMALL_VIT = {
    "patch_size": 2,
    "encoder_layers": 2,
    "encoder_embed_dim": 12,
    "encoder_attention_heads": 2,
    "encoder_ffn_embed_dim": 16,
}


def write_images(folder: Path, levels=5, size=(4, 3, 1), splits=(("train", 40), ("valid", 9), ("test", 11))):
    """Images whose levels grow from left to right, with some noise, as data-prep/images.sh writes them."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split, count in splits:
        slope = np.linspace(0, levels - 1.5, size[1])[None, None, :, None]
        images = np.minimum(slope + generator.integers(0, 2, (count, *size)), levels - 1).astype(np.uint8)
        np.save(folder / f"{split}.images.npy", images)
        np.save(folder / f"{split}.label.npy", generator.integers(0, 10, count))
    manifest = {
        "corpus": "slopes",
        "classes": [str(i) for i in range(10)],
        "levels": levels,
        "height": size[0],
        "width": size[1],
        "channels": size[2],
        "splits": {split: {"images": count} for split, count in splits},
        "verified": None,
        "sources": {},
    }
    (folder / "preparation.json").write_text(json.dumps(manifest))
    return folder


def pixel_task(folder: Path, **options) -> PixelTask:
    """The task of prepared images."""
    return PixelTask.setup_task(PixelTaskConfig(data=str(folder), **options))


def classification_task(folder: Path, **options) -> ImageClassificationTask:
    """The task of prepared images and their classes."""
    return ImageClassificationTask.setup_task(ImageClassificationConfig(data=str(folder), seed=1, **options))


def build_vit(shape: ImageShape, classes: int = 10, arch: str = "vit", **options):
    """A Vision Transformer, of the architecture's size unless `options` say otherwise, in evaluation mode."""
    return build_model(arch, SimpleNamespace(shape=shape, classes=classes), **options)


def build_pixel_model(task: PixelTask, arch: str = "pixel_linear", **options):
    """A small model, unless `options` say otherwise, in evaluation mode."""
    return build_model(arch, task, **{**SMALL, "max_target_positions": None, **options})
