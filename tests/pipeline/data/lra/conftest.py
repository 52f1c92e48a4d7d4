"""Fixtures: the command run within the test's process, the samples unpacked, prepared folders read back."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from pipeline.data.lra import prepare as command
from pipeline.errors import UserError
from tests.helpers.prepared import contents, manifest


@pytest.fixture
def prepare(monkeypatch) -> Callable[..., None]:
    """Runs lra.sh with these arguments; what it reads may be a sample."""

    def call(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["lra.sh", "--partial", *map(str, arguments)])
        command.main()

    return call


@pytest.fixture
def refusal(prepare, tmp_path) -> Callable[..., str]:
    """Runs lra.sh --dest, which must end as a user's mistake ends and leave nothing; gives the sentence."""

    def call(*arguments: object) -> str:
        dest = tmp_path / "refused"
        with pytest.raises(UserError) as error:
            prepare(*arguments, "--dest", dest)
        assert not dest.exists() or not any(dest.iterdir())
        sentence = str(error.value)
        assert "\n" not in sentence and not sentence.endswith(".")
        return sentence

    return call


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


@pytest.fixture
def files() -> Callable[[Path], dict[str, bytes]]:
    """The content of all files below a folder, by name."""
    return contents
