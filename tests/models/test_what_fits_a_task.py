"""Criterions, models and numbers of classes that do not fit a task: a sentence before anything is loaded."""

from types import SimpleNamespace

import pytest
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.registry import REGISTRIES

from user_dir.checks.tasks import FITS, check_classes, check_criterion_of_task, check_model_of_task
from user_dir.errors import UserError

ARCHITECTURES = {
    "transformer_lm": "language_modeling",
    "transnormer_t1": "language_modeling",
    "flash_lm": "recall",
    "roberta": "masked_lm",
    "roberta_linear": "sentence_prediction",
    "lra_skyformer": "lra",
    "vit_deit_tiny": "image_classification",
    "pixel_lsh": "pixels",
}
"""Architectures of each kind, with a task that trains them."""


@pytest.mark.parametrize("task", FITS)
def test_the_default_criterion_is_refused_where_it_reports_another_loss(task):
    fitting = FITS[task][1]
    for criterion in fitting:
        check_criterion_of_task(criterion, task)
    for criterion in {"cross_entropy", "label_smoothed_cross_entropy"} - {*fitting}:
        with pytest.raises(UserError, match=f"^--criterion {criterion} does not .* {task}; .*{fitting[-1]}$"):
            check_criterion_of_task(criterion, task)


def test_the_criterions_of_the_plugin_are_known():
    """A new one that no task names would go unchecked."""
    ours = {
        name
        for name, kind in REGISTRIES["criterion"]["registry"].items()
        if kind.__module__.startswith("user_dir.")
    }
    assert ours <= {criterion for _, known in FITS.values() for criterion in known}


def test_anothers_criterion_model_or_task_is_not_restricted(monkeypatch):
    own = type("Own", (FairseqCriterion,), {"__module__": "somebodys.plugin"})
    monkeypatch.setitem(REGISTRIES["criterion"]["registry"], "own", own)
    check_criterion_of_task("own", "masked_lm")
    monkeypatch.setitem(
        MODEL_REGISTRY, "own", type("Own", (RobertaModel,), {"__module__": "somebodys.plugin"})
    )
    check_model_of_task("own", "lra")
    check_criterion_of_task("cross_entropy", "a_task_of_their_own")
    check_criterion_of_task("cross_entropy", None)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tasks_of_other_models(arch):
    kind = FITS[ARCHITECTURES[arch]][0]
    for task, (takes, _) in FITS.items():
        if takes == kind or (kind == "an encoder" and task.endswith("language_modeling")):
            check_model_of_task(arch, task)
            continue
        with pytest.raises(
            UserError, match=f"^{arch} is {kind}, which --task {task} .*{ARCHITECTURES[arch]}"
        ):
            check_model_of_task(arch, task)


def test_other_models_and_tasks_go_together():
    for arch, task in [("fconv", "lra"), ("transnormer_t1", "translation"), (None, "lra")]:
        check_model_of_task(arch, task)


@pytest.mark.parametrize(
    ("classes", "regression", "message"),
    [
        (3, False, None),
        (4, False, None),
        (1, True, None),
        (2, False, "--num-classes is 2, but label/dict.txt has 3 labels; give --num-classes 3"),
        (-1, False, "--num-classes is missing"),
        (0, True, "--num-classes is missing"),
    ],
)
def test_the_number_of_classes(classes, regression, message):
    labels = Dictionary()
    for name in ("0", "1", "2"):
        labels.add_symbol(name, n=5)
    labels.pad_to_multiple_(8)  # as fairseq-preprocess does
    labels.add_symbol("<mask>")  # as the task does
    settings = SimpleNamespace(_name="sentence_prediction", num_classes=classes, regression_target=regression)
    if message is None:
        check_classes(settings, labels)
        return
    with pytest.raises(UserError, match=f"^{message}"):
        check_classes(settings, labels)
