"""What the sweeps over models of images share: a run, and what its result says of model and images."""

from dataclasses import dataclass
from typing import Any

from pipeline.studies.measured_cell import DataCell
from pipeline.training.image_run import ImageCheckpoint
from user_dir.tasks.image_data import ImageData


@dataclass(frozen=True)
class ImageCell(DataCell):
    """A run on prepared images; by default its seed and the user's flags are added to the YAML."""

    data: ImageData

    def own_flags(self) -> list[str]:
        """What is added to the YAML."""
        return [*self.flags, "--seed", str(self.seed)]

    def decisive(self) -> list[Any]:
        """See `Cell.decisive`: the images, too."""
        return [*super().decisive(), self.data.manifest]

    def about(self, preset: str, checkpoint: ImageCheckpoint) -> dict[str, Any]:
        """What a table must say of run, model and images."""
        return {
            "preset": preset,
            "method": self.method,
            "seed": self.seed,
            "flags": list(self.flags),
            "updates": checkpoint.updates,
            "settings": self.experiment.settings,
            "architecture": checkpoint.architecture,
            "attention": checkpoint.attention,
            "parameters": sum(p.numel() for p in checkpoint.model.parameters() if p.requires_grad),
            "corpus": self.data.manifest["corpus"],
            "original_files": self.data.manifest["verified"],
        }
