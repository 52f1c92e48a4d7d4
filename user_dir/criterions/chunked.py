"""fairseq's criterions `cross_entropy` and `masked_lm` without the logits of a whole batch.

`chunked_cross_entropy` and `chunked_masked_lm` give the same loss, gradients and log; `chunked_cross_entropy`
with `--label-smoothing` those of `label_smoothed_cross_entropy`. The model stops at its features; the output
matrix, tied or not, with or without bias, is applied to `--chunk-rows` tokens at a time, or to all of them by
kernels that keep the logits on the chip.
With `--compile` torch.compile makes one graph of the model's features.
"""

from dataclasses import dataclass, field
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from omegaconf import II
from torch import Tensor, nn

from ..errors import UserError
from ..models.compiled import compile_features
from ..models.output_matrix import masked_lm_features, output_matrix
from ..modules.linear_cross_entropy import ROWS, linear_cross_entropy, target_margins, token_losses


@dataclass
class ChunkedOptions:
    """Options of both criterions besides those of fairseq's."""

    chunk_rows: int = field(
        default=ROWS,
        metadata={"help": "tokens whose logits are computed at a time: fewer need less memory, more time"},
    )
    label_smoothing: float = field(
        default=0.0, metadata={"help": "must be 0, except with chunked_cross_entropy: from 0 to 1"}
    )
    compile: bool = field(
        default=False,
        metadata={"help": "compile the model with torch.compile; on a CPU it gains nothing and is left out"},
    )
    ddp_backend: str = II("distributed_training.ddp_backend")


@dataclass
class ChunkedCrossEntropyConfig(ChunkedOptions, CrossEntropyCriterionConfig):
    """Options of `chunked_cross_entropy`."""


@dataclass
class ChunkedMaskedLmConfig(ChunkedOptions, MaskedLmConfig):
    """Options of `chunked_masked_lm`."""


class _Chunked:
    """Shared by both criterions, besides fairseq's own."""

    def set_up(self, name: str, cfg: ChunkedOptions) -> None:
        """Take over the options; UserError for those that the criterion `name` excludes."""
        if cfg.chunk_rows < 1:
            raise UserError(f"--chunk-rows is {cfg.chunk_rows}; it must be a whole number from 1 up")
        if cfg.ddp_backend == "fully_sharded":
            raise UserError(
                f"--criterion {name} needs the whole output matrix, which --ddp-backend fully_sharded takes "
                f"apart; give --criterion {name.removeprefix('chunked_')}, or another --ddp-backend"
            )
        self.rows, self.to_compile = cfg.chunk_rows, cfg.compile

    def compile_once(self, model: nn.Module, target: Tensor) -> None:
        """Compile the first model it is given if that was requested, but not on a CPU."""
        if self.to_compile:
            self.to_compile = False
            if target.device.type != "cpu":
                compile_features(model)


@register_criterion("chunked_cross_entropy", dataclass=ChunkedCrossEntropyConfig)
class ChunkedCrossEntropy(_Chunked, LabelSmoothedCrossEntropyCriterion):
    """Cross-entropy of a language model in nats, summed over tokens; O(rows V) memory for logits."""

    def __init__(self, cfg: ChunkedCrossEntropyConfig, task: Any) -> None:
        super().__init__(task, cfg.sentence_avg, cfg.label_smoothing)
        self.set_up("chunked_cross_entropy", cfg)
        if not 0 <= self.eps <= 1:
            raise UserError(f"--label-smoothing is {self.eps}; it must be from 0 to 1")

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """As `cross_entropy`: the loss, the sample size and the logged values, smoothed or not."""
        net_input = {**sample["net_input"], "features_only": True}
        self.compile_once(model, sample["target"])
        loss, size, log = super().forward(model, {**sample, "net_input": net_input}, reduce)
        if not self.eps:
            del log["nll_loss"]  # which is the loss
        return loss, size, log

    def compute_loss(
        self, model: nn.Module, net_output: tuple, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The loss, smoothed and not: sums, or `(B N,)` of all tokens without `reduce`."""
        weight, bias = output_matrix(model)
        target = model.get_targets(sample, net_output).view(-1)
        compute = linear_cross_entropy if reduce else token_losses
        given = (net_output[0].flatten(0, 1), weight, target, bias)
        loss = compute(*given, ignore_index=self.padding_idx, rows=self.rows)
        if not self.eps:
            return loss, loss
        margins = target_margins(*given, ignore_index=self.padding_idx)
        # fairseq spreads epsilon over all words but the target.
        epsilon = self.eps * len(weight) / (len(weight) - 1)
        return loss + epsilon * (margins.sum() if reduce else margins), loss

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the same as `cross_entropy`, or with smoothing as `label_smoothed_cross_entropy`."""
        smoothed = any("nll_loss" in log for log in logging_outputs)
        kind = LabelSmoothedCrossEntropyCriterion if smoothed else CrossEntropyCriterion
        kind.reduce_metrics(logging_outputs)


@register_criterion("chunked_masked_lm", dataclass=ChunkedMaskedLmConfig)
class ChunkedMaskedLm(_Chunked, MaskedLmLoss):
    """Cross-entropy of the masked tokens in nats, summed; O(rows V) memory for logits."""

    def __init__(self, cfg: ChunkedMaskedLmConfig, task: Any) -> None:
        super().__init__(cfg, task)
        self.set_up("chunked_masked_lm", cfg)
        if cfg.label_smoothing:
            raise UserError("--criterion chunked_masked_lm does not smooth labels; give --label-smoothing 0")

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """As `masked_lm`: the loss, the number of masked tokens and the logged values."""
        self.compile_once(model, sample["target"])
        masked = sample["target"].ne(self.padding_idx)
        x, (weight, bias) = masked_lm_features(model, sample["net_input"], masked)
        target = model.get_targets(sample, [x])[masked]
        loss = linear_cross_entropy(x, weight, target, bias, ignore_index=self.padding_idx, rows=self.rows)
        sample_size = masked.int().sum()
        logging_output = {
            "loss": loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
        }
        return loss, sample_size, logging_output
