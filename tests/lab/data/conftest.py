"""Fixtures: a command started, a full disk, and a small corpus cut from WikiText-2."""

import gzip
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from lab.data.lra import listops, pathfinder
from tests.helpers.encoders import prepare
from tests.helpers.prepared import write_splits


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager]:
    """While `full_disk(size)` lasts, no file grows beyond `size` bytes."""

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture
def start() -> Callable[..., subprocess.Popen]:
    """Starts a script without waiting for it."""

    def call(*words: object) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "lab", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    return call


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    """The generators make blocks of a few examples."""
    monkeypatch.setattr(listops, "BLOCK", 30)
    monkeypatch.setattr(pathfinder, "BLOCK", 8)


@pytest.fixture(scope="session")
def wikitext2(shared_dir) -> Path:
    """The published files, packed."""
    return shared_dir / "data" / "wikitext-2"


@pytest.fixture(scope="session")
def small_texts(wikitext2) -> dict[str, list[str]]:
    """Lines of WikiText-2's valid and test, few enough for many runs."""
    lines = {}
    for split in ("valid", "test"):
        with gzip.open(wikitext2 / f"wiki.{split}.tokens.gz", "rt", encoding="utf-8") as text:
            lines[split] = text.readlines()
    return {"train": lines["valid"], "valid": lines["test"][:400], "test": lines["test"][400:900]}


@pytest.fixture(scope="session")
def small_corpus(small_texts, tmp_path_factory) -> Path:
    """A folder like WikiText's, with other counts."""
    texts = {split: "".join(lines) for split, lines in small_texts.items()}
    return write_splits(tmp_path_factory.mktemp("small corpus"), **texts)


@pytest.fixture(scope="session")
def small_prepared(small_corpus, tmp_path_factory) -> Path:
    """The small corpus with a sentencepiece vocabulary of 1,000."""
    dest = tmp_path_factory.mktemp("prepared") / "with a space, and a comma"
    places = ("--from", small_corpus, "--dest", dest, "--allow-unverified")
    prepare("wikitext", "wikitext-2", *places, "--tokenizer", "sentencepiece", "--vocab-size", 1000)
    return dest


@pytest.fixture(scope="session")
def tiny_pretraining(tmp_path_factory) -> Path:
    """A pre-training folder with 400 sentencepiece pieces, of three documents in train."""
    lines = ["The cat sat on the mat , it said .", "A dog barked ; nobody heard it !", "Why ? Who knows ."]
    train = "\n\n\n" + "\n".join(lines * 20) + "\n\n  \nOne more .\n\nThe end ."
    other = "The dog sat .\nIt said why .\n\nA cat !\n"
    folder = write_splits(tmp_path_factory.mktemp("tiny"), train=train, valid=other, test=other)
    dest = folder / "prepared"
    words = ("text", "--from", folder, "--dest", dest)
    prepare("roberta", *words, "--tokenizer", "sentencepiece", "--vocab-size", 340)
    return dest


@pytest.fixture(scope="session")
def samples(shared_dir, tmp_path_factory) -> Path:
    """The samples of all tasks, unpacked side by side."""
    folder = tmp_path_factory.mktemp("samples")
    for path in shared_dir.glob("data/*/*_sample.tar.gz"):
        with tarfile.open(path) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4
            archive.extractall(folder)
    return folder
