"""Files of a split as fairseq's tasks open them: every format of fairseq, and data changed since."""

import json

import pytest
import torch
from fairseq.data import data_utils, indexed_dataset
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from conventions.content import hashes_of
from tests.helpers.lm import dictionary
from user_dir.errors import UserError
from user_dir.fairseq_patches.data import explain_missing_splits, read_in_order

ROWS = ([4, 5, 2], [6, 2], [7, 8, 9, 2])


def write_split(path, implementation):
    builder = indexed_dataset.make_builder(f"{path}.bin", implementation, vocab_size=40)
    for row in ROWS:
        builder.add_item(torch.IntTensor(row))
    builder.finalize(f"{path}.idx")


@pytest.mark.parametrize("implementation", ["cached", "mmap"])
def test_formats_of_fairseq(implementation, tmp_path):
    write_split(tmp_path / "train", implementation)
    rows = data_utils.load_indexed_dataset(str(tmp_path / "train"), dataset_impl=implementation)
    assert rows.sizes.tolist() == [len(row) for row in ROWS]
    (tmp_path / "train.idx").write_bytes(b"MMIDIDX")
    with pytest.raises(UserError, match="train.idx is not a fairseq index, or is cut off"):
        data_utils.load_indexed_dataset(str(tmp_path / "train"), dataset_impl=implementation)


def test_a_language_models_data_changed_since_their_preparation(tmp_path, monkeypatch):
    write_split(tmp_path / "train", "mmap")
    dictionary(40).save(str(tmp_path / "dict.txt"))
    manifest = {"sha256": hashes_of(tmp_path, ["train.bin", "train.idx"]), "splits": {"train": {}}}
    (tmp_path / "train.bin").write_bytes((tmp_path / "train.bin").read_bytes()[::-1])
    (tmp_path / "preparation.json").write_text(json.dumps(manifest))
    monkeypatch.setattr("conventions.content.is_newer", lambda path, manifest: True)
    settings = {"tokens_per_sample": 8, "sample_break_mode": "none", "dataset_impl": None, "seed": 1}
    config = LanguageModelingConfig(data=str(tmp_path), use_plasma_view=False, **settings)
    explain_missing_splits(LanguageModelingTask)
    with pytest.raises(UserError, match="train.bin has changed since it was prepared"):
        LanguageModelingTask.setup_task(config).load_dataset("train")


def test_context_windows_are_read_in_order():
    assert (read_in_order(num_workers=4, context_window=8), read_in_order(num_workers=0)) == (1, 0)
    with pytest.raises(UserError, match="which another of the 2 processes or shards reads"):
        read_in_order(num_shards=2)
