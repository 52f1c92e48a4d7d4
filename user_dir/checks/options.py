"""Options of a model whose defaults follow from others, or that do nothing in it."""

import contextlib
import logging
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from ..errors import UserError

logger = logging.getLogger(__name__)


def fill_in_options(cfg: Any, arch: str | None) -> None:
    """Let the model `arch` fill in the open settings of its configuration, so that checkpoints hold them.

    (Building the model is too late: fairseq gives it a copy of the configuration.)
    """
    fill_in = getattr(ARCH_MODEL_REGISTRY.get(arch), "fill_in_options", None)
    if fill_in is not None:
        fill_in(cfg)


def note_idle_options(given: Namespace, arch: str | None, words: Sequence[str]) -> None:
    """Warn of options in a command's `words` whose attention is in none of the layers of `arch`.

    `given` are the words as fairseq reads them; the rest is filled in here with the model's defaults.
    """
    find = getattr(ARCH_MODEL_REGISTRY.get(arch), "idle_options", None)
    if find is None:
        return
    settings = {**vars(MODEL_DATACLASS_REGISTRY[arch]()), **vars(given)}
    with contextlib.suppress(UserError):  # a plan that cannot be read is refused when the model is built
        idle = find(Namespace(**settings))
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        for flag in sorted(flags):
            if name := idle.get(flag.removeprefix("--").replace("-", "_")):
                logger.warning("%s does nothing: no layer of the model has %s attention", flag, name)
