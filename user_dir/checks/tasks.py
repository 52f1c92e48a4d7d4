"""What fits a task: the models that it trains, and the criterions that compute its loss."""

from typing import Any

from fairseq.models import (
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
    FairseqLanguageModel,
)
from fairseq.models.roberta import RobertaModel
from fairseq.registry import REGISTRIES

from ..errors import UserError
from .options import nearest

OF_WORDS = ("cross_entropy", "chunked_cross_entropy", "label_smoothed_cross_entropy", "adaptive_loss")
OF_MASKED_TEXT = ("masked_lm", "chunked_masked_lm")
FITS = {
    "language_modeling": ("a language model", OF_WORDS),
    "carried_language_modeling": ("a language model", OF_WORDS),
    "multilingual_language_modeling": ("a language model", OF_WORDS),
    "copy": ("a language model", ("copy", "cross_entropy")),
    "recall": ("a language model", ("copy", "cross_entropy")),
    "masked_lm": ("an encoder", OF_MASKED_TEXT),
    "multilingual_masked_lm": ("an encoder", OF_MASKED_TEXT),
    "sentence_prediction": ("an encoder", ("sentence_prediction",)),
    "sentence_ranking": ("an encoder", ("sentence_ranking",)),
    "lra": ("a classifier of Long Range Arena", ("lra", "classification")),
    "image_classification": ("a Vision Transformer", ("classification", "lra")),
    "pixels": ("a model of pixels", ("pixel_likelihood", "cross_entropy")),
}
"""The kind of model and the criterions of each task, the usual one first; other tasks take any."""
MARKS = {
    "pixel_head": "a model of pixels",
    "pixel_input": "a classifier of Long Range Arena",
    "patch_size": "a Vision Transformer",
}
"""A setting that only this kind of model has."""
KINDS = {FairseqLanguageModel: "a language model", RobertaModel: "an encoder"}


def check_criterion_of_task(criterion: str | None, task: str | None) -> None:
    """UserError for a criterion, such as fairseq's default, that would report another loss than the task's.

    fairseq's cross_entropy divides by all tokens, also where a task predicts few of them. A criterion that is
    neither fairseq's nor the plugin's may do as it likes, and so may the loss that a model computes itself.
    """
    fitting = ("model", *FITS[task][1]) if task in FITS else (criterion,)
    if criterion in fitting or not is_known(REGISTRIES["criterion"]["registry"].get(criterion)):
        return
    raise UserError(
        f"--criterion {criterion} does not compute the loss of --task {task}; give --criterion "
        f"{' or '.join(fitting[1:])}"
    )


def is_known(part: type | None) -> bool:
    """Whether a criterion or a model is fairseq's or the plugin's; nothing is known of what others fit."""
    ours = __name__.partition(".")[0]
    return part is not None and part.__module__.partition(".")[0] in ("fairseq", ours)


def check_model_name(name: str | None) -> None:
    """UserError for a missing or unknown model of a YAML; the parser checks those of command lines."""
    known = {**ARCH_MODEL_REGISTRY, **MODEL_REGISTRY}
    if not name:
        raise UserError("the model is missing; give its name, in a YAML as model._name")
    if name not in known:
        raise UserError(f"unknown model {name!r}; the nearest are {', '.join(nearest(name, [*known]))}")


def check_model_of_task(arch: str | None, task: str | None) -> None:
    """UserError for a task that trains and evaluates another kind of model than `arch`."""
    kind = kind_of(arch)
    says_so_itself = kind == "an encoder" and task in FITS and FITS[task][1] == OF_WORDS
    if task in FITS and kind and kind != FITS[task][0] and not says_so_itself:
        fitting = ", ".join(name for name, (of, _) in FITS.items() if of == kind)
        raise UserError(f"{arch} is {kind}, which --task {task} does not take; its tasks are {fitting}")


def kind_of(arch: str | None) -> str | None:
    """The kind of an architecture or a model; None if it is not one of those that `FITS` names."""
    model = ARCH_MODEL_REGISTRY.get(arch) or MODEL_REGISTRY.get(arch)
    if not is_known(model):
        return None
    settings = settings_of(arch)
    marked = [kind for mark, kind in MARKS.items() if hasattr(settings, mark)]
    return next(iter([*marked, *(kind for base, kind in KINDS.items() if issubclass(model, base))]), None)


def settings_of(arch: str | None) -> type | None:
    """The dataclass of the settings of an architecture or a model; None if it has none."""
    return MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(arch, arch))


def check_classes(settings: Any, labels: Any = None) -> None:
    """UserError where `--num-classes` of sentence_prediction is missing, or too small for the `labels`."""
    if getattr(settings, "_name", None) != "sentence_prediction":
        return
    if settings.num_classes < 1:
        raise UserError("--num-classes is missing; give the number of labels, for a regression 1")
    if not labels or settings.regression_target:
        return
    named = list(zip(labels.symbols, labels.count, strict=True))[labels.nspecial :]
    found = sum(count > 0 for name, count in named if name != "<mask>")  # which the task adds
    if settings.num_classes < found:
        raise UserError(
            f"--num-classes is {settings.num_classes}, but label/dict.txt has {found} labels; give "
            f"--num-classes {found}"
        )
