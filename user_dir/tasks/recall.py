"""fairseq's task `recall`: associative recall of several pairs (Arora et al. 2023, "Zoology")."""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II

from ..errors import UserError
from .drawn_rows import SPLITS
from .recall_data import RecallDataset, most_pairs, recall_dictionary
from .whole_rows import WholeRowsTask


@dataclass
class RecallTaskConfig(FairseqDataclass):
    """Configuration of `recall`."""

    recall_pairs: str = field(
        default="8",
        metadata={"help": "pairs of key and value in a row; with several numbers (4,8,16) a row draws one"},
    )
    recall_keys: int = field(default=256, metadata={"help": "different keys"})
    recall_values: int = field(default=256, metadata={"help": "different values"})
    tokens_per_sample: int = field(
        default=64, metadata={"help": "length N of pairs, questions and filling together"}
    )
    max_target_positions: Optional[int] = field(
        default=None, metadata={"help": "positions of the model; default: --tokens-per-sample"}
    )
    train_samples: int = field(default=64_000, metadata={"help": "rows in an epoch of training"})
    eval_samples: int = field(default=1000, metadata={"help": "rows of valid and of test"})
    seed: int = II("common.seed")


def numbers_of_pairs(given: str) -> list[int]:
    """The numbers in the value of --recall-pairs, such as 8 or 4,8,16; UserError for another."""
    words = given.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--recall-pairs is {given}; it must be a number from 1, or several, such as 4,8,16")
    return sorted({int(word) for word in words})


@register_task("recall", dataclass=RecallTaskConfig)
class RecallTask(WholeRowsTask):
    """Rows that are drawn on the fly; nothing is read.

    Raises:
        UserError: for more pairs than fit or than there are keys, and for anything but numbers from 1.
    """

    def __init__(self, cfg: RecallTaskConfig) -> None:
        super().__init__(cfg)
        for name in ("recall_keys", "recall_values", "train_samples", "eval_samples"):
            if getattr(cfg, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(cfg, name)}; it must be 1 or more")
        self.pairs = numbers_of_pairs(cfg.recall_pairs)
        most = min(most_pairs(cfg.tokens_per_sample), cfg.recall_keys)
        if max(self.pairs) > most:
            raise UserError(
                f"--recall-pairs is {cfg.recall_pairs}; rows of {cfg.tokens_per_sample} tokens and "
                f"{cfg.recall_keys} keys have room for {most}"
            )
        self.dictionary = recall_dictionary(cfg.recall_keys, cfg.recall_values)

    @classmethod
    def setup_task(cls, cfg: RecallTaskConfig, **kwargs: Any) -> "RecallTask":
        """The task, which needs no data folder."""
        return cls(cfg)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Make a split, one of train, valid and test; UserError for another."""
        if split not in SPLITS:
            raise UserError(f"the recall task has no split {split}; it has {', '.join(SPLITS)}")
        samples = self.cfg.train_samples if split == "train" else self.cfg.eval_samples
        self.datasets[split] = RecallDataset(
            self.dictionary,
            self.cfg.recall_keys,
            self.cfg.tokens_per_sample,
            self.pairs,
            samples,
            self.cfg.seed,
            split,
        )
