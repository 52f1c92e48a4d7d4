"""Fixtures: the scripts run as a user runs them, and a small corpus cut from WikiText-2."""

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import forked

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def data_prep() -> Path:
    """The folder with the commands."""
    return ROOT / "data-prep"


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess]:
    """Runs a module of pipeline.data; `preexec_fn` may set limits."""

    def call(module: str, *arguments: object, **options) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "pipeline", f"data.{module}", *map(str, arguments)]
        if not options:
            return forked.run(command)
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)

    return call


@pytest.fixture
def start() -> Callable[..., subprocess.Popen]:
    """Starts a module of pipeline.data without waiting for it."""

    def call(module: str, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "pipeline", f"data.{module}", *map(str, arguments)]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    return call


@pytest.fixture
def refused() -> Callable[[subprocess.CompletedProcess], str]:
    """Checks that a script ended as a user's mistake ends; gives the sentence."""

    def check(result: subprocess.CompletedProcess) -> str:
        assert result.returncode not in (0, None), result.stdout
        lines = result.stderr.strip().splitlines()
        assert len(lines) == 1, result.stderr
        assert "Traceback" not in result.stderr
        assert not lines[0].endswith(".")
        return lines[0]

    return check


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
    folder = tmp_path_factory.mktemp("small corpus")
    for split, lines in small_texts.items():
        (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def small_prepared(small_corpus, tmp_path_factory) -> Path:
    """The small corpus with a sentencepiece vocabulary of 1,000."""
    dest = tmp_path_factory.mktemp("prepared") / "with a space, and a comma"
    command = [sys.executable, "-m", "pipeline", "data.wikitext", "wikitext-2", "--from", small_corpus]
    command += ["--dest", dest, "--tokenizer", "sentencepiece", "--vocab-size", "1000"]
    forked.run([*command, "--allow-unverified"], check=True)
    return dest


@pytest.fixture(scope="session")
def tiny_pretraining(tmp_path_factory) -> Path:
    """A pre-training folder with 400 sentencepiece pieces, of three documents in train."""
    folder = tmp_path_factory.mktemp("tiny")
    lines = ["The cat sat on the mat , it said .", "A dog barked ; nobody heard it !", "Why ? Who knows ."]
    (folder / "train.txt").write_text("\n\n\n" + "\n".join(lines * 20) + "\n\n  \nOne more .\n\nThe end .")
    for split in ("valid", "test"):
        (folder / f"{split}.txt").write_text("The dog sat .\nIt said why .\n\nA cat !\n")
    dest = folder / "prepared"
    command = [sys.executable, "-m", "pipeline", "data.masked_lm", "text", "--from", folder, "--dest", dest]
    forked.run([*command, "--tokenizer", "sentencepiece", "--vocab-size", "340"], check=True)
    return dest
