"""The task `lra` and its criterion: folders, batches, exact accuracy, and bad input."""

import json
import shutil

import numpy as np
import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import metrics

from tests.helpers.build import build_model
from tests.helpers.lra import SPLITS, lra_task, write_lra
from user_dir.criterions import LRACriterion
from user_dir.errors import UserError
from user_dir.tasks import LRATask
from user_dir.tasks.lra import LRATaskConfig


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("lra")
    return {name: write_lra(root / name, name) for name in ("listops", "retrieval", "image")}


@pytest.fixture
def listops(folders, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(folders["listops"], tmp_path / "listops")


def open_task(folder, **options):
    task = LRATask.setup_task(LRATaskConfig(data=str(folder), **options))
    task.load_dataset("train")
    task.load_dataset("test")
    return task


def batches(task, split, epoch=1, **options) -> EpochBatchIterator:
    iterator = task.get_batch_iterator(task.dataset(split), max_sentences=5, seed=7, epoch=epoch, **options)
    return list(iterator.next_epoch_itr(shuffle=False))


@pytest.mark.parametrize("name", ["listops", "retrieval", "image"])
def test_batches_hold_every_row_once(name, folders):
    task = open_task(folders[name])
    found = batches(task, "test")
    assert sorted(int(i) for batch in found for i in batch["id"]) == list(range(SPLITS["test"]))
    labels = np.load(folders[name] / "test.label.npy")
    for batch in found:
        assert batch["target"].tolist() == labels[batch["id"].numpy()].tolist()
        inputs, parts = batch["net_input"], ("src", "other")[: len(task.data.inputs)]
        assert set(inputs) == {f"{part}_{what}" for part in parts for what in ("tokens", "lengths")}
        for part in parts:
            rows, lengths = inputs[f"{part}_tokens"], inputs[f"{part}_lengths"]
            assert rows.shape[1] == lengths.max()
            if name != "image":
                assert rows.ne(1).sum(1).tolist() == lengths.tolist()


def test_the_size_of_a_pair_is_that_of_its_longer_row(folders):
    data = open_task(folders["retrieval"]).dataset("test")
    lengths = [[len(row) for row in data[i]["rows"]] for i in range(len(data))]
    assert any(one < other for one, other in lengths) and any(one > other for one, other in lengths)
    assert [data.size(i) for i in range(len(data))] == [max(both) for both in lengths]


def test_training_batches_are_others_in_every_epoch_and_the_same_again(folders):
    task = open_task(folders["listops"])
    first, again, second = ([b["id"].tolist() for b in batches(task, "train", e)] for e in (1, 1, 2))
    assert first == again
    assert {frozenset(ids) for ids in first} != {frozenset(ids) for ids in second}


def test_the_checkpoint_will_know_the_task(folders):
    config, task = LRATaskConfig(), open_task(folders["image"])
    assert task.source_dictionary is None
    task.note_data(config)
    assert config.lra_task == "image"
    with pytest.raises(UserError, match="holds image, but the settings or the checkpoint are for listops"):
        open_task(folders["image"], lra_task="listops")


def test_accuracy_is_that_of_all_rows_whatever_the_batches(folders):
    task = open_task(folders["listops"])
    criterion = LRACriterion(task)

    def model(src_tokens, src_lengths):
        return torch.nn.functional.one_hot(src_tokens[:, 0] % 10, 10).float()

    outputs = [criterion(model, batch)[2] for batch in batches(task, "test")]
    assert [output["nsentences"] for output in outputs] == [5, 5, 1]
    with metrics.aggregate() as alone:
        for output in outputs:  # as one worker after the other batch
            criterion.reduce_metrics([output])
    with metrics.aggregate() as together:
        criterion.reduce_metrics([{key: sum(o[key] for o in outputs) for key in outputs[0]}])
    rows = [task.dataset("test")[i] for i in range(11)]
    right = sum(int(row["rows"][0][0]) % 10 == row["label"] for row in rows)
    for aggregate in (alone, together):
        assert aggregate.get_smoothed_values()["accuracy"] == pytest.approx(100 * right / 11, abs=1e-4)
    loss = torch.stack([output["loss"] for output in outputs]).sum() / 11 / np.log(2)
    assert together.get_smoothed_values()["loss"] == pytest.approx(float(loss), abs=1e-3)


def test_a_worker_without_rows_changes_nothing():
    with metrics.aggregate() as aggregate:
        LRACriterion.reduce_metrics([{"loss": 0, "ncorrect": 0, "nsentences": 0}])
    assert not aggregate.get_smoothed_values()


def test_a_sequence_longer_than_the_positions(folders):
    with pytest.raises(UserError, match="a sequence of 40 positions is longer than the 32 of the model"):
        batches(open_task(folders["listops"]), "train", max_positions=32, ignore_invalid_inputs=True)


def test_a_label_out_of_range(listops):
    labels = np.load(listops / "train.label.npy")
    labels[3] = 10
    np.save(listops / "train.label.npy", labels)
    with pytest.raises(
        UserError, match="label 10 of row 3 in train.label.npy is out of range: listops has classes 0 to 9"
    ):
        open_task(listops)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.input0.bin", "has no train.input0.bin"),
        ("train.label.npy", "has no train.label.npy"),
        ("dict.txt", "has no dict.txt"),
        ("preparation.json", "is not a task of Long Range Arena"),
    ],
)
def test_missing_files(name, message, listops):
    (listops / name).unlink()
    with pytest.raises(UserError, match=message):
        open_task(listops)


def test_damaged_files(listops):
    with pytest.raises(UserError, match="has no split dev; it has train, valid, test"):
        open_task(listops).load_dataset("dev")
    content = listops / "train.input0.bin"
    content.write_bytes(content.read_bytes()[:-2])
    with pytest.raises(UserError, match="train.input0.bin is not .* bytes long as it was made"):
        open_task(listops)
    task = LRATask.setup_task(LRATaskConfig(data=str(listops)))
    np.save(listops / "test.label.npy", np.zeros(3, dtype=int))
    with pytest.raises(UserError, match="test of .* has 3 labels for 11 rows"):
        task.load_dataset("test")
    (listops / "test.label.npy").write_bytes(b"")
    with pytest.raises(UserError, match="test.label.npy is damaged"):
        task.load_dataset("test")
    (listops / "preparation.json").write_text("{")
    with pytest.raises(UserError, match="preparation.json is damaged"):
        open_task(listops)
    (listops / "preparation.json").write_text(json.dumps({"corpus": "text"}))
    with pytest.raises(UserError, match="is not a task of Long Range Arena"):
        open_task(listops)
    with pytest.raises(UserError, match="no data folder"):
        open_task(listops / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": None}, "preparation.json is damaged"),
        ({"files": []}, "preparation.json is damaged"),
        ({"splits": ...}, "is not a task of Long Range Arena"),
    ],
)
def test_a_foreign_manifest(change, message, listops):
    path = listops / "preparation.json"
    manifest = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in manifest.items() if value is not ...}))
    with pytest.raises(UserError, match=message):
        open_task(listops).load_dataset("test")


def test_no_samples_are_an_empty_batch(folders):
    assert open_task(folders["image"]).dataset("test").collater([]) == {}


def test_a_mechanism_without_bidirectional_form(monkeypatch):
    from user_dir.attention import attention_class

    monkeypatch.setattr(attention_class("elu"), "causal_only", True)
    with pytest.raises(UserError, match="'elu' has no bidirectional form at character 9 of the layer plan"):
        build_model("lra_skyformer", lra_task("listops"), encoder_attention="softmax,elu")
