"""A training run that has diverged ends in one sentence that names the update and the layer."""

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq.tasks import FairseqTask

from ..errors import Diverged, UserError

ADVICE = "lower --lr, lengthen the warm-up, or set --clip-norm"
# The detector's message, which names the module: "NaN detected in output of decoder.layers.3.attention, ...".
FOUND = re.compile(r"(NaN|Inf) detected in output of (\S*), .*(forward|backward)")
NOT_FINITE = re.compile(r"= (nan|-?inf)$", re.MULTILINE)  # a process' norm in the trainer's message
LAYER = re.compile(r".*?layers\.\d+")


class _Listener(logging.Handler):
    """Keeps the first module that fairseq's NaN detector names."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.place = ""

    def emit(self, record: logging.LogRecord) -> None:
        match = FOUND.search(record.getMessage())
        if match and not self.place:
            kind, name, way = match.groups()
            layer = LAYER.match(name)
            module = (layer[0] if layer else name) or "the model's output"
            self.place = f"; the first {kind} is in the {way} pass of {module}"


@contextmanager
def explained_divergence(trainer: Any) -> Iterator[None]:
    """A loss or gradient that is NaN or infinite ends fairseq in a traceback."""
    listener, detector = _Listener(), logging.getLogger("fairseq.nan_detector")
    detector.addHandler(listener)
    try:
        yield
    except FloatingPointError as error:
        raise _error_of(error, trainer.get_num_updates() + 1, listener.place) from error
    finally:
        detector.removeHandler(listener)


def check_loss(trainer: Any, stats: Any) -> None:
    """Diverged if the loss of the update just made is not finite, looked at once in a logging interval.

    fairseq checks the norm of every update's gradients, but not the loss. That of an update without a token
    to predict, such as a masked one, is 0 / 0.
    """
    interval, update = trainer.cfg.common.log_interval, trainer.get_num_updates()
    if not stats or not stats.get("sample_size", 1) or interval < 1 or update % interval:
        return
    loss = stats.get("loss")
    if loss is not None and not math.isfinite(loss):
        raise _diverged(f"the loss is {float(loss)}", update)


def _error_of(error: FloatingPointError, update: int, place: str) -> UserError:
    """The meaning of a trainer's error; it also says "inconsistent" where all gradients are NaN."""
    text = str(error)
    if "inconsistent" in text and not NOT_FINITE.search(text):
        return UserError(
            f"the gradients of update {update} differ between the processes; try --ddp-backend legacy_ddp, "
            "or GPUs of one kind"
        )
    what = "the gradients are" if "gradients" in text else "the scaled loss is"
    return _diverged(f"{what} NaN or infinite", update, place)


def _diverged(what: str, update: int, place: str = "") -> Diverged:
    return Diverged(f"training has diverged: {what} at update {update}{place}; {ADVICE}")


@contextmanager
def refused_losses() -> Iterator[None]:
    """Inside the block, a NaN or infinite loss raises UserError; fairseq-validate reports it and exits 0."""
    usual = FairseqTask.valid_step

    def valid_step(self: FairseqTask, *args: Any) -> tuple[Any, Any, Any]:
        loss, size, logged = usual(self, *args)
        if not math.isfinite(float(loss)):
            raise UserError(
                "the loss is NaN or infinite: the training of the model has diverged, or its precision is "
                "too low; name an earlier checkpoint, or leave out --fp16"
            )
        return loss, size, logged

    FairseqTask.valid_step = valid_step
    try:
        yield
    finally:
        FairseqTask.valid_step = usual
