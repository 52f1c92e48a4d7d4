"""Options of a model whose defaults follow from others."""

from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY

from ..errors import UserError


def fill_in_options(cfg: Any, arch: str | None) -> None:
    """Let the model `arch` fill in the open settings of its configuration, so that checkpoints hold them.

    (Building the model is too late: fairseq gives it a copy of the configuration.) UserError for a norm that
    lets a decoder see what is to come.
    """
    fill_in = getattr(ARCH_MODEL_REGISTRY.get(arch), "fill_in_options", None)
    if fill_in is not None:
        fill_in(cfg)
    if getattr(cfg, "decoder_final_norm", None) == "batchnorm":
        raise UserError(
            "--decoder-final-norm batchnorm takes its statistics from positions to come as well; "
            "choose another norm"
        )
