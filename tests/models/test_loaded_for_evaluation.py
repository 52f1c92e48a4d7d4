"""What of a checkpoint must fit the task that reads it, besides the sizes of its weights."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from tests.helpers.lm import dictionary
from tests.helpers.roberta import build_roberta
from user_dir.checks.dictionaries import LABELS, fingerprint, label_fingerprint
from user_dir.errors import UserError
from user_dir.fairseq_patches.trainer import check_start


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Holds a file of the name that fairseq looks for; its content is given to it."""
    monkeypatch.chdir(tmp_path)
    Path("x.pt").touch()


def labels(*names):
    found = Dictionary()
    for name in names:
        found.add_symbol(name)
    return found


def task_of(build=None, names=("0", "1", "2")):
    words = dictionary(40)
    return SimpleNamespace(build_model=build, source_dictionary=words, label_dictionary=labels(*names))


def with_head(name=None, classes=3, **options):
    model = build_roberta("roberta_linear", **options)
    if name:
        model.register_classification_head(name, num_classes=classes)
    return model


def evaluated(saved, given, extra_state=None, names=("0", "1", "2")):
    """The model that an evaluation with the model `given` loads from the checkpoint of `saved`."""
    state = {"cfg": SimpleNamespace(model=None), "model": saved.state_dict(), "extra_state": extra_state}
    task = task_of(lambda cfg: given, names)
    return checkpoint_utils.load_model_ensemble_and_task(["x.pt"], task=task, state=state)[0][0]


@pytest.mark.parametrize("options", [{}, {"spectral_norm_classification_head": True}])
def test_a_head_that_was_not_trained_is_not_evaluated(options):
    """fairseq evaluates the weights that it was drawn with."""
    saved = with_head("mine", **options)
    found = evaluated(saved, with_head("mine", **options)).state_dict()
    assert all(torch.equal(x, found[name]) for name, x in saved.state_dict().items())
    there = r"but mine \(3 classes\); give the --classification-head-name and the --num-classes"
    with pytest.raises(UserError, match=f"x.pt holds no classification head other of 3 classes, {there}"):
        evaluated(saved, with_head("other", **options))
    with pytest.raises(UserError, match=f"x.pt holds no classification head mine of 4 classes, {there}"):
        evaluated(saved, with_head("mine", classes=4, **options))
    with pytest.raises(UserError, match="holds no classification head mine of 3 classes, but none"):
        evaluated(with_head(), with_head("mine", **options))


def test_heads_without_use_do_not_disturb():
    """A masked-LM evaluation drops them, the hub takes them over, fine-tuning begins with new ones."""
    assert not evaluated(with_head("mine"), with_head()).classification_heads
    hub = evaluated(with_head("mine"), with_head(load_checkpoint_heads=True))
    assert list(hub.classification_heads) == ["mine"]
    with_head("mine").load_state_dict(with_head().state_dict())


def test_labels_in_another_order_are_refused():
    saved = with_head("mine")
    kept = label_fingerprint(task_of())
    for extra_state in (None, {}, kept):  # older checkpoints keep no fingerprint
        evaluated(saved, with_head("mine"), extra_state)
    with pytest.raises(UserError, match="the labels in label/dict.txt are not those that x.pt was trained"):
        evaluated(saved, with_head("mine"), kept, names=("2", "1", "0"))


def test_labels_that_are_numbers_have_no_fingerprint():
    task = task_of()
    task.label_dictionary = task.source_dictionary
    assert label_fingerprint(task) == label_fingerprint(SimpleNamespace()) == {}


def test_checkpoints_keep_the_fingerprint_of_the_labels(tmp_path):
    cfg = OmegaConf.create({"checkpoint": {"no_save": False, "write_checkpoints_asynchronously": False}})
    cfg.ema = {"store_ema": False}
    trainer = SimpleNamespace(cfg=cfg, task=task_of(), should_save_checkpoint_on_current_rank=True)
    trainer.state_dict = lambda: {"extra_state": {}}
    Trainer.save_checkpoint(trainer, str(tmp_path / "x.pt"), {})
    saved = torch.load(tmp_path / "x.pt", weights_only=True)
    assert saved["extra_state"][LABELS] == fingerprint(labels("0", "1", "2"))


def start(folder, task, reset_optimizer=False, model=None, extra_state=None):
    """Begin a training with a checkpoint of another folder."""
    groups = {"model": model or {"_name": "a"}, "task": {"_name": "a"}}
    state = {"model": {}, "cfg": groups, "last_optimizer_state": {}, "extra_state": extra_state}
    torch.save(state, folder / "x.pt")
    cfg = OmegaConf.create({**groups, "checkpoint": {"save_dir": str(folder / "other")}})
    check_start(SimpleNamespace(cfg=cfg, task=task), str(folder / "x.pt"), reset_optimizer)


def test_training_does_not_resume_with_other_labels(tmp_path):
    kept = label_fingerprint(task_of())
    start(tmp_path, task_of(), extra_state=kept)
    start(tmp_path, task_of(names=("b", "a")), reset_optimizer=True, extra_state=kept)
    with pytest.raises(UserError, match="other labels or another order"):
        start(tmp_path, task_of(names=("b", "a")), extra_state=kept)


def test_a_task_without_a_dictionary_starts_from_no_language_model(tmp_path):
    task = SimpleNamespace(source_dictionary=None)
    start(tmp_path, task)
    with pytest.raises(UserError, match="trained with a dictionary, but the task has none; give the --task"):
        start(tmp_path, task, reset_optimizer=True, model={"dictionary_sha256": "0" * 64})
