"""fairseq's criterion `pixel_likelihood`: bits per dimension of images."""

import math
from typing import Any

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn


@register_criterion("pixel_likelihood", dataclass=FairseqDataclass)
class PixelLikelihoodCriterion(FairseqCriterion):
    """The mean of -ln p over the bytes that count; in the log in bits, which is bits per dimension."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """The summed loss, the number of bytes it is divided by, and the logged values."""
        target = sample["target"]
        nats = model.log_prob(model(**sample["net_input"]), target).masked_fill(
            target.eq(self.padding_idx), 0
        )
        loss = -nats.sum()
        logging_output = {
            "loss": loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample["ntokens"],
        }
        return loss, sample["ntokens"], logging_output

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log bits per dimension of all workers' outputs."""
        loss, count = (sum(log.get(key, 0) for log in logging_outputs) for key in ("loss", "ntokens"))
        if count:
            metrics.log_scalar("loss", loss / count / math.log(2), count, round=5)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """They are sums already."""
        return True
