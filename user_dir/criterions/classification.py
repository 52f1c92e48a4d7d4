"""fairseq's criterion `classification`: cross-entropy, and the exact accuracy; `lra` is the same."""

import math
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.logging.meters import safe_round
from torch import Tensor, nn


@register_criterion("classification", dataclass=FairseqDataclass)
class ClassificationCriterion(FairseqCriterion):
    """Mean cross-entropy over examples, in bits in the log, and `accuracy` in percent.

    Accuracy is correct / counted, both summed over batches and workers, so that it is exact whatever the
    sizes of the batches.
    """

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """The summed loss, the number of examples it is divided by, and the logged values."""
        logits, target = model(**sample["net_input"]), sample["target"]
        loss = F.cross_entropy(logits.float(), target, reduction="sum")
        count = len(target)
        logging_output = {
            "loss": loss.data,
            "ncorrect": logits.argmax(dim=-1).eq(target).sum(),
            "ntokens": sample["ntokens"],
            "nsentences": count,
            "sample_size": count,
        }
        return loss, count, logging_output

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss and the accuracy of all workers' outputs."""
        loss, correct, count = (
            sum(log.get(key, 0) for log in logging_outputs) for key in ("loss", "ncorrect", "nsentences")
        )
        if count == 0:
            return
        metrics.log_scalar("loss", loss / count / math.log(2), count, round=3)
        metrics.log_scalar_sum("_correct", correct)
        metrics.log_scalar_sum("_counted", count)
        metrics.log_derived(
            "accuracy", lambda m: safe_round(100 * float(m["_correct"].sum) / float(m["_counted"].sum), 4)
        )

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """They are sums already."""
        return True


@register_criterion("lra", dataclass=FairseqDataclass)
class LRACriterion(ClassificationCriterion):
    """The name in the YAMLs and checkpoints of Long Range Arena."""
