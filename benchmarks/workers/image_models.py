"""Models of images byte by byte with random weights, in the sizes of Katharopoulos et al. 2020."""

from typing import Any

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

import user_dir  # noqa: F401  (registers the models)
from pipeline.methods import Size
from pipeline.sequence_methods import SEQUENCE_METHODS
from user_dir.models import PixelModel
from user_dir.models.architectures import T1, T2, TRANSNORMER, TRANSNORMER_LM
from user_dir.tasks.image_data import ImageShape
from user_dir.tasks.pixels import PixelTask, PixelTaskConfig

SHAPES = {
    "mnist": ImageShape(256, 28, 28, 1),
    "cifar10": ImageShape(256, 32, 32, 3),
    "tiny": ImageShape(256, 4, 4, 1),
}
# The paper's number of buckets, with the chunks of its code.
LSH = {"reformer_chunk_size": 32, "reformer_buckets": 64}
TRANSNORMERS = {"t1": T1, "t2": T2}


def settings_of(name: str, size: Size) -> dict[str, Any]:
    """The model's settings for a way of `pipeline.reports.costs.image_cost.WAYS`, at `size`."""
    common = {
        "decoder_layers": size.layers,
        "decoder_embed_dim": size.width,
        "decoder_attention_heads": size.heads,
        "decoder_ffn_embed_dim": 4 * size.width,
        "max_target_positions": None,
        **LSH,
    }
    if name in TRANSNORMERS:
        own = {"decoder_norm_position": "pre", "decoder_final_norm": "rmsnorm", **TRANSNORMERS[name]}
        return {**common, **TRANSNORMER_LM, **own, "decoder_attention": TRANSNORMER(size.layers)}
    method = SEQUENCE_METHODS[name.removesuffix("-recompute")]
    options = {key.removeprefix("--").replace("-", "_"): int(value) for key, value in method.options.items()}
    return {**common, **options, "decoder_attention": method.plan}


def build_image_model(name: str, images: str, size: Size, device: str) -> tuple[PixelModel, PixelTask]:
    """The model in evaluation mode on a device, and its task."""
    shape = SHAPES[images]
    task = PixelTask(PixelTaskConfig(data="", tokens_per_sample=shape.dims), shape)
    config = MODEL_DATACLASS_REGISTRY["pixel_linear"]()
    for key, value in settings_of(name, size).items():
        setattr(config, key, value)
    model = MODEL_REGISTRY["pixel_linear"].build_model(config, task)
    return model.to(torch.device(device)).eval(), task
