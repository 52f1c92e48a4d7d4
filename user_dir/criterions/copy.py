"""fairseq's criterion `copy`, also for `recall`: cross-entropy and accuracy of the targets that count."""

import math
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn


@register_criterion("copy", dataclass=FairseqDataclass)
class CopyCriterion(FairseqCriterion):
    """Mean cross-entropy over the targets that are not padding, in bits in the log.

    `accuracy` is the share of these that have the largest logit, `exact` that of sequences without a
    mistake, both in percent.
    """

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """The summed loss, the number of targets it is divided by, and the logged values."""
        logits, target = model(**sample["net_input"])[0], sample["target"]
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), target.flatten(), ignore_index=self.padding_idx, reduction="sum"
        )
        wrong = logits.argmax(dim=-1).ne(target) & target.ne(self.padding_idx)
        logging_output = {
            "loss": loss.data,
            "nwrong": wrong.sum(),
            "nexact": (~wrong.any(dim=1)).sum(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample["ntokens"],
        }
        return loss, sample["ntokens"], logging_output

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log loss, accuracy and exact sequences of all workers' outputs."""
        loss, wrong, exact, tokens, rows = (
            sum(log.get(key, 0) for log in logging_outputs)
            for key in ("loss", "nwrong", "nexact", "ntokens", "nsentences")
        )
        if tokens == 0:
            return
        metrics.log_scalar("loss", loss / tokens / math.log(2), tokens, round=6)
        metrics.log_scalar("accuracy", 100 * (1 - wrong / tokens), tokens, round=4)
        metrics.log_scalar("exact", 100 * exact / rows, rows, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """They are sums already."""
        return True
