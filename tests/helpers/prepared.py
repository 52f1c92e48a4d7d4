"""Prepared folders, read without the project's own code."""

import json
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary, FairseqDataset, data_utils


def manifest(folder: Path) -> dict[str, Any]:
    """What a folder says that it holds."""
    return json.loads((folder / "preparation.json").read_text())


def rows(folder: Path, split: str, dictionary: Dictionary) -> FairseqDataset:
    """The rows of a split."""
    return data_utils.load_indexed_dataset(str(folder / split), dictionary, combine=False)


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
