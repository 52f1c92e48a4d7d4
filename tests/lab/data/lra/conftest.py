"""Fixtures: the command run within the test's process, the samples unpacked, prepared folders read back."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from tests.helpers.prepared import manifest


@pytest.fixture
def prepare(call) -> Callable[..., None]:
    """Runs lra.sh with these arguments; its input may be a sample."""
    return partial(call, "data-prep/lra.sh", "--partial")


@pytest.fixture
def refusal(refused, tmp_path) -> Callable[..., str]:
    """Runs lra.sh, which must end as a user's mistake ends and leave nothing; gives the sentence."""

    def run(*arguments: object) -> str:
        dest = tmp_path / "refused"
        sentence = refused("data-prep/lra.sh", "--partial", *arguments, "--dest", dest)
        assert not dest.exists() or not any(dest.iterdir())
        assert not sentence.endswith(".")
        return sentence

    return run


class Prepared:
    """A prepared folder, read without the project's own code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = manifest(folder)

    def labels(self, split: str) -> np.ndarray:
        labels = np.load(self.folder / f"{split}.label.npy")
        assert labels.dtype == np.int64
        return labels

    def pixels(self, split: str) -> np.ndarray:
        pixels = np.load(self.folder / f"{split}.pixels.npy", mmap_mode="r")
        assert pixels.dtype == np.uint8
        return pixels

    def rows(self, split: str, name: str = "input0") -> list[np.ndarray]:
        dataset = MMapIndexedDataset(str(self.folder / f"{split}.{name}"))
        return [row.numpy() for row in dataset]

    @property
    def dictionary(self) -> Dictionary:
        return Dictionary.load(str(self.folder / "dict.txt"))

    def words(self, row: np.ndarray) -> list[str]:
        dictionary = self.dictionary
        return [dictionary[number] for number in row]


@pytest.fixture
def opened() -> type[Prepared]:
    """Opens a prepared folder."""
    return Prepared
