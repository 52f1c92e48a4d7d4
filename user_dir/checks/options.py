"""Options of a model whose defaults follow from others."""

from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY


def fill_in_options(cfg: Any, arch: str | None) -> None:
    """Let the model `arch` fill in what its configuration leaves open, so that checkpoints hold it.

    (Building the model is too late: fairseq gives it a copy of the configuration.)
    """
    fill_in = getattr(ARCH_MODEL_REGISTRY.get(arch), "fill_in_options", None)
    if fill_in is not None:
        fill_in(cfg)
