"""fairseq's task `copy`: repeat a sequence after a separator (Katharopoulos et al. 2020, section 4.1.1)."""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II

from ..errors import UserError
from .copy_data import SHORTEST, CopyDataset, copy_dictionary
from .drawn_rows import SPLITS
from .whole_rows import WholeRowsTask


@dataclass
class CopyTaskConfig(FairseqDataclass):
    """Configuration of `copy`."""

    copy_symbols: int = field(default=10, metadata={"help": "different symbols to copy"})
    tokens_per_sample: int = field(
        default=128, metadata={"help": "length N of sequence, separator, copy and filling together"}
    )
    max_target_positions: Optional[int] = field(
        default=None, metadata={"help": "positions of the model; default: --tokens-per-sample"}
    )
    train_samples: int = field(default=64_000, metadata={"help": "sequences in an epoch of training"})
    eval_samples: int = field(default=256, metadata={"help": "sequences of valid and of test"})
    seed: int = II("common.seed")


@register_task("copy", dataclass=CopyTaskConfig)
class CopyTask(WholeRowsTask):
    """Sequences that are drawn on the fly; nothing is read.

    Raises:
        UserError: for invalid lengths and numbers.
    """

    def __init__(self, cfg: CopyTaskConfig) -> None:
        super().__init__(cfg)
        if cfg.tokens_per_sample < SHORTEST:
            raise UserError(
                f"--tokens-per-sample is {cfg.tokens_per_sample}; a copy needs {SHORTEST} tokens or more"
            )
        for name in ("copy_symbols", "train_samples", "eval_samples"):
            if getattr(cfg, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(cfg, name)}; it must be 1 or more")
        self.dictionary = copy_dictionary(cfg.copy_symbols)

    @classmethod
    def setup_task(cls, cfg: CopyTaskConfig, **kwargs: Any) -> "CopyTask":
        """The task, which needs no data folder."""
        return cls(cfg)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Make a split, one of train, valid and test; UserError for another."""
        if split not in SPLITS:
            raise UserError(f"the copy task has no split {split}; it has {', '.join(SPLITS)}")
        samples = self.cfg.train_samples if split == "train" else self.cfg.eval_samples
        self.datasets[split] = CopyDataset(
            self.dictionary, self.cfg.tokens_per_sample, samples, self.cfg.seed, split
        )
