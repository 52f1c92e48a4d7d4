"""Fixtures: the command run within the test's process, the samples unpacked, prepared folders read back."""

import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from pipeline.data.lra import prepare as command
from pipeline.errors import UserError


@pytest.fixture(scope="session")
def samples(shared_dir, tmp_path_factory) -> Path:
    """The samples of all tasks, unpacked side by side."""
    folder = tmp_path_factory.mktemp("samples")
    for path in [
        path for name in ("lra", "imdb") for path in (shared_dir / "data" / name).glob("*_sample.tar.gz")
    ]:
        with tarfile.open(path) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4
            archive.extractall(folder)
    return folder


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
        self.manifest = json.loads((folder / "preparation.json").read_text())

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


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def files() -> Callable[[Path], dict[str, bytes]]:
    """The content of all files below a folder, by name."""
    return contents
