"""Classifiers of Long Range Arena as fairseq builds them, on random rows."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import LanguageModel, Size
from pipeline.data.lra.tasks import TASKS

GREY_VALUES = 256


class LRAClassifier(LanguageModel):
    """A classifier with its task, loss and optimizer, built from the flags a user would type.

    Args: as for `LanguageModel`, `architecture` the name of an attention; and
        lra_task: the task.
    """

    pipeline: str  # for which the data would be prepared

    def __init__(
        self, architecture: str, size: Size, length: int, positions: int, device: str, lra_task: str
    ) -> None:
        self.lra_task = TASKS[lra_task]
        super().__init__(architecture, size, length, positions, device)

    def data_folder(self, folder: Path, size: Size, length: int) -> Path:
        """See `LanguageModel.data_folder`."""
        about = {
            "task": self.lra_task.name,
            "pipeline": self.pipeline,
            "inputs": self.lra_task.inputs,
            "classes": self.lra_task.classes,
            "length": length,
            "origin": "generated",
            "splits": {},
        }
        (folder / "preparation.json").write_text(json.dumps(about), encoding="utf-8")
        return super().data_folder(folder, size, length)

    def task_flags(self, length: int) -> list[str]:
        """None: rows have the length they have."""
        return []

    def model_flags(self, architecture: str, size: Size) -> list[str]:
        """The flags with which fairseq builds the classifier with an attention at `size`."""
        raise NotImplementedError

    def flags(self, architecture: str, size: Size, positions: int) -> list[str]:
        """See `LanguageModel.flags`."""
        flags = ["--task", "lra", *self.model_flags(architecture, size)]
        return [*flags, "--max-positions", str(positions), "--criterion", "lra"]

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """A batch as the task makes it, on the device."""
        inputs = {}
        for name, _ in zip(("src", "other"), self.lra_task.inputs, strict=False):
            inputs[f"{name}_tokens"] = self.values(rows, length)
            inputs[f"{name}_lengths"] = torch.full((rows,), length, device=self.device)
        return {
            "id": torch.arange(rows),
            "nsentences": rows,
            "ntokens": rows * length * len(self.lra_task.inputs),
            "net_input": inputs,
            "target": torch.randint(len(self.lra_task.classes), (rows,), device=self.device),
        }

    def values(self, rows: int, length: int) -> Tensor:
        """Random tokens or grey values `(rows, length)`."""
        if self.lra_task.is_image:
            return torch.randint(GREY_VALUES, (rows, length), device=self.device).to(torch.uint8)
        return self.tokens(rows, length)
