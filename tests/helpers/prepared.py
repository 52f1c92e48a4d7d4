"""Prepared folders, read with fairseq's own readers, and the texts that they are made of."""

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary, FairseqDataset, data_utils

from lab.data.tokenization import TextEncoder
from tests.helpers import forked


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest's description of a folder."""
    return json.loads((folder / "preparation.json").read_text())


def rows(folder: Path, split: str) -> FairseqDataset:
    """The rows of a split."""
    return data_utils.load_indexed_dataset(str(folder / split))


def decoded(folder: Path, split: str) -> list[str]:
    """The lines of a split, whose tokens are all known, through the tokeniser of the folder."""
    dictionary, encoder = Dictionary.load(str(folder / "dict.txt")), TextEncoder.from_folder(folder)
    lines = []
    for row in rows(folder, split):
        assert row[-1] == dictionary.eos() and dictionary.unk() not in row
        lines.append(encoder.decode(" ".join(dictionary[index] for index in row[:-1])))
    return lines


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_corpus(folder: Path, words: int = 60, seed: int = 0) -> None:
    """Sentences of a language in which each word has a few likely successors."""
    rng = random.Random(seed)
    after = [[rng.randrange(words) for _ in range(3)] for _ in range(words)]
    for split, lines in (("train", 300), ("valid", 30), ("test", 30)):
        text = []
        for _ in range(lines):
            word, sentence = rng.randrange(words), []
            for _ in range(rng.randrange(5, 40)):
                sentence.append(f"w{word}")
                word = rng.choice(after[word])
            text.append(" ".join(sentence))
        (folder / f"{split}.txt").write_text("\n".join(text) + "\n")


def write_splits(folder: Path, **texts: str) -> Path:
    """Write each split's text as SPLIT.txt; returns the folder, which is made if need be."""
    folder.mkdir(exist_ok=True)
    for split, text in texts.items():
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    return folder


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write each file of a new folder."""
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def as_wikitext2(source: Path, dest: Path) -> list[object]:
    """The command line that prepares a text which is not WikiText-2 as if it were."""
    return ["data-prep/wikitext.sh", "wikitext-2", "--from", source, "--dest", dest, "--allow-unverified"]


def preprocess(texts: Mapping[str, Path], dest: Path, *options: object) -> None:
    """Run `fairseq-preprocess` on the text of each split."""
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--only-source", "--destdir", dest, *options]
    for split, text in texts.items():
        command += [f"--{split}pref", text]
    forked.run(command, check=True)
