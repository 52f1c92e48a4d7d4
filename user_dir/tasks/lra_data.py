"""A folder that data-prep/lra.sh wrote: its manifest and its splits."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset

from conventions.content import manifest_of
from conventions.files import check_no_pipe

from ..errors import UserError
from .arrays import load_array, load_labels
from .whole_rows import WholeRowsDataset

PREPARE = "prepare it again with data-prep/lra.sh"


@dataclass(frozen=True)
class LRAData:
    """A prepared task; its fields are the keys of its `preparation.json`."""

    folder: Path
    task: str
    pipeline: str
    inputs: tuple[str, ...]
    classes: tuple[str, ...]
    length: int
    origin: str
    splits: dict[str, Any]
    manifest: dict[str, Any]

    @cached_property
    def dictionary(self) -> Optional[Dictionary]:
        """fairseq's dictionary, None for pixels; raises UserError where it is missing."""
        if self.inputs == ("pixels",):
            return None
        path = self.folder / "dict.txt"
        if not path.is_file():
            raise UserError(f"the data folder {self.folder} has no {path.name}; {PREPARE}")
        return Dictionary.load(str(path))

    def split(self, name: str) -> "LRADataset":
        """A split; raises UserError for one that is missing, damaged or has a label out of range."""
        if name not in self.splits:
            raise UserError(
                f"the data folder {self.folder} has no split {name}; it has {', '.join(self.splits)}"
                + ("; --disable-validation trains without" if name == "valid" else "")
            )
        sources = [self._source(name, input_) for input_ in self.inputs]
        rows = [len(source) for source in sources]
        labels = load_labels(self.folder, name, rows, len(self.classes), self.task, PREPARE)
        return LRADataset(sources, labels, None if self.dictionary is None else self.dictionary.pad())

    def _source(self, split: str, input_: str) -> "np.ndarray | MMapIndexedDataset":
        if input_ == "pixels":
            return load_array(self.folder, f"{split}.pixels.npy", PREPARE, mmap_mode="r")
        prefix = self.folder / f"{split}.{input_}"
        for ending in ("idx", "bin"):
            name = f"{prefix.name}.{ending}"
            if not (self.folder / name).is_file():
                raise UserError(f"the data folder {self.folder} has no {name}; {PREPARE}")
            size = self.manifest.get("files", {}).get(name)
            if size not in (None, (self.folder / name).stat().st_size):
                raise UserError(f"{self.folder / name} is not {size} bytes long as it was made; {PREPARE}")
        return MMapIndexedDataset(str(prefix))


def open_lra_data(folder: Path) -> LRAData:
    """The task in `folder`; raises UserError if there is none, or its manifest cannot be read."""
    if not folder.is_dir():
        raise UserError(f"no data folder {folder}; prepare it with data-prep/lra.sh")
    check_no_pipe(folder)
    manifest = manifest_of(folder) or {}
    try:
        return LRAData(
            folder=folder,
            task=manifest["task"],
            pipeline=manifest["pipeline"],
            inputs=tuple(manifest["inputs"]),
            classes=tuple(manifest["classes"]),
            length=manifest["length"],
            origin=manifest["origin"],
            splits=manifest["splits"],
            manifest=manifest,
        )
    except (KeyError, TypeError):
        raise UserError(f"{folder} is not a task of Long Range Arena; {PREPARE}") from None


class LRADataset(WholeRowsDataset):
    """Rows of tokens or pixels, or pairs of rows, and their classes.

    Training batches are drawn at random in each epoch, as in the benchmark's pipelines: rows of a batch do
    not resemble each other in length.

    Args:
        sources: the first and, for pairs, the second sequences.
        labels: `(rows,)`.
        pad: the dictionary's padding index, None for pixels.
    """

    def __init__(self, sources: list, labels: np.ndarray, pad: Optional[int]) -> None:
        self.sources, self.labels, self.pad = sources, labels, pad
        lengths = [
            source.sizes if pad is not None else np.full(len(source), source.shape[1]) for source in sources
        ]
        super().__init__(np.max(lengths, axis=0))

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows = [source[index] for source in self.sources]
        if self.pad is None:
            rows = [torch.from_numpy(np.array(row)) for row in rows]
        return {"id": index, "rows": rows, "label": int(self.labels[index])}

    def collated(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """See `WholeRowsDataset.collated`; filled with padding to the longest row."""
        net_input: dict[str, torch.Tensor] = {}
        columns = zip(*(sample["rows"] for sample in samples), strict=True)
        for name, rows in zip(("src", "other"), columns, strict=False):
            stacked = torch.stack(rows) if self.pad is None else data_utils.collate_tokens(rows, self.pad)
            net_input[f"{name}_tokens"] = stacked
            net_input[f"{name}_lengths"] = torch.tensor([len(row) for row in rows])
        return {
            "net_input": net_input,
            "target": torch.tensor([sample["label"] for sample in samples]),
            "ntokens": sum(int(v.sum()) for k, v in net_input.items() if k.endswith("_lengths")),
        }
