"""fairseq's task `lra`: Long Range Arena (Tay et al. 2021), from a folder that data-prep/lra.sh wrote."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.tasks import register_task
from omegaconf import MISSING

from ..errors import UserError
from .lra_data import LRAData, LRADataset, open_lra_data
from .whole_rows import WholeRowsTask

PIPELINES = {"lra_skyformer": "skyformer", "lra_state_space": "state-space"}  # of the presets


@dataclass
class LRATaskConfig(FairseqDataclass):
    """Configuration of `lra`."""

    data: str = field(default=MISSING, metadata={"help": "folder that data-prep/lra.sh wrote"})
    lra_task: Optional[str] = field(
        default=None,
        metadata={
            "help": "the task that the folder must hold, such as listops; default: any, which is noted"
        },
    )


@register_task("lra", dataclass=LRATaskConfig)
class LRATask(WholeRowsTask):
    """Classification of sequences of tokens or pixels, and matching of pairs.

    Raises:
        UserError: for a folder that holds another task, see `setup_task`, or sequences longer than the
            positions of the model.
    """

    def __init__(self, cfg: LRATaskConfig, data: LRAData) -> None:
        super().__init__(cfg)
        self.data, self.dictionary = data, data.dictionary

    @classmethod
    def setup_task(cls, cfg: LRATaskConfig, **kwargs: Any) -> "LRATask":
        """The task of `cfg.data`."""
        data = open_lra_data(Path(cfg.data))
        if cfg.lra_task not in (None, data.task):
            raise UserError(
                f"{cfg.data} holds {data.task}, but the settings or the checkpoint are for {cfg.lra_task}; "
                "name the folder of that task"
            )
        return cls(cfg, data)

    def note_data(self, cfg: Any) -> None:
        """Write the name of the task into the configuration that checkpoints hold (ours is a copy)."""
        cfg.lra_task = self.data.task

    def check_pipeline(self, arch: str) -> None:
        """UserError if `arch` is one of the presets, and the data were prepared for the other's pipeline."""
        wanted = PIPELINES.get(arch)
        if wanted and self.data.pipeline not in (wanted, "both"):
            raise UserError(
                f"{self.cfg.data} was prepared for the pipeline {self.data.pipeline}, but {arch} is of "
                f"{wanted}; prepare it with data-prep/lra.sh --pipeline {wanted}"
            )

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        """The model; UserError as `check_pipeline` has it."""
        self.check_pipeline(str(getattr(cfg, "_name", None) or getattr(cfg, "arch", "")))
        return super().build_model(cfg, from_checkpoint)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load a split; the training split is shuffled."""
        dataset = self.data.split(split)
        dataset.shuffled = split == "train"
        self.datasets[split] = dataset

    def filter_indices_by_size(
        self,
        indices: np.ndarray,
        dataset: LRADataset,
        max_positions: Optional[int] = None,
        ignore_invalid_inputs: bool = False,
    ) -> np.ndarray:
        """All of them: a sequence that is too long is the user's mistake, not left out."""
        longest = int(dataset.sizes.max(initial=0))
        if max_positions is not None and longest > max_positions:
            raise UserError(
                f"a sequence of {longest} positions is longer than the {max_positions} of the model or of "
                "--max-tokens; train with a larger --max-positions, or prepare shorter sequences"
            )
        return indices

    @property
    def target_dictionary(self) -> None:
        """Classes are numbers."""
        return None
