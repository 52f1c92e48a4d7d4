"""alpha and beta of LLN attention from the standard deviations of queries and keys."""

import logging
import math

import torch
from fairseq.distributed import utils as workers
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype

logger = logging.getLogger(__name__)

MOMENTUM = 0.1
# Below it a standard deviation is rounding: equal queries or keys attend evenly, and alpha, beta stay finite.
SMALLEST_SIGMA = 1e-6


class LogNormalScale(nn.Module):
    """alpha and beta from queries and keys, without gradient.

    In training the standard deviations are taken over all real values of the worker's batch, all heads and
    channels together. A running average of the standard deviations over the batches of all workers (weight
    0.1 for the newest, a plain mean of the first ten batches) is kept in float32 buffers, also when the model
    is cast to half precision; evaluation takes it, 1 before any training. It is the same on every worker, so
    that validation, the checkpoint and a later evaluation agree: each batch costs one all-reduce of five
    numbers (how many values there are, and the sums and the sums of squares of queries and keys). Only
    batches that record gradients enter it. Activation checkpointing, which runs a layer again in the backward
    pass, counts a batch once: the first time if that records gradients, as without reentrance.

    Args:
        a, b: the constants of the moment matching.
        running: False for the batch's standard deviations, padding included, in evaluation, too.
        fixed: alpha and beta where they do not come from moment matching. The average is kept all the same.
    """

    def __init__(self, a: float, b: float, running: bool, fixed: tuple[float, float] | None = None) -> None:
        super().__init__()
        self.a, self.b, self.running, self.fixed = a, b, running, fixed
        self.register_buffer("sigma", torch.ones(2, dtype=torch.float32))  # of q and of k
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self._counted = False

    @torch.no_grad()
    def average(self) -> tuple[Tensor, Tensor]:
        """alpha and beta from the running average."""
        return self.matched(self.sigma)

    def forward(self, q: Tensor, k: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """alpha and beta for `q, k: (B, H, N, d)`, `padding_mask: (B, N)` True at padding."""
        if self.running and not self.training:
            return self.average()
        remember = self.training and torch.is_grad_enabled()
        if not _in_backward():
            self._counted = remember
        elif self._counted:
            remember = False
        with torch.no_grad():
            moments = Moments.of(q, k, padding_mask if self.running else None)
            sigma = moments.sigma()
            if remember:
                everywhere = moments.over_workers()
                self._remember(sigma if everywhere is moments else everywhere.sigma())
            return self.matched(sigma)

    @torch.no_grad()
    def matched(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """alpha and beta for `sigma: (2,)`, the standard deviations of q and k; the fixed ones if given."""
        if self.fixed is not None:
            return sigma.new_tensor(self.fixed[0]), sigma.new_tensor(self.fixed[1])
        square = sigma.clamp(min=SMALLEST_SIGMA).square()
        # s / sigma with s written out: the product of two large squares would overflow.
        alpha, beta = ((square.flip(0) - self.b / square).clamp(min=0) / (2 * self.a)).sqrt()
        return alpha, beta

    def _remember(self, sigma: Tensor) -> None:
        newest = (1 / (self.batches + 1)).clamp(min=MOMENTUM)
        average = torch.lerp(self.sigma, sigma.to(self.sigma.dtype), newest.to(self.sigma.dtype))
        # A batch of padding, or one that overflowed, is left out.
        usable = ((sigma > 0) & (sigma < math.inf)).all()
        self.sigma.copy_(torch.where(usable, average, self.sigma))
        self.batches.add_(usable)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        names = [name for name in ("sigma", "batches") if f"{prefix}{name}" not in state_dict]
        for name in names:  # the authors' checkpoints have none
            state_dict[f"{prefix}{name}"] = getattr(self, name)
        if names and self.running and self.fixed is None:
            logger.warning(
                f"{prefix}* is not in the checkpoint, so evaluation takes {self.sigma.tolist()} as the "
                "standard deviations of q and k; evaluate a model of the authors' with statistics 'batch'"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn, recurse=True):
        before = self.sigma
        super()._apply(fn, recurse)
        if self.sigma.element_size() < 4:  # steps of the average would be rounded away
            self.sigma = before.to(self.sigma.device)
        return self


def _in_backward() -> bool:
    """Whether a backward pass runs this; a compiler, which cannot ask, lets none compute it again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class Moments:
    """How many values q and k have, their means, and their sums of squared differences from the mean.

    Args:
        count: a tensor of one element, the same for q and k.
        mean, squares: `(2,)`, of q and of k.
    """

    def __init__(self, count: Tensor, mean: Tensor, squares: Tensor) -> None:
        self.count, self.mean, self.squares = count, mean, squares

    @classmethod
    def of(cls, q: Tensor, k: Tensor, padding_mask: Tensor | None) -> "Moments":
        """Of `q, k: (B, H, N, d)` at the positions that are not `padding_mask: (B, N)`."""
        q, k = (x.to(accumulation_dtype(x.dtype)) for x in (q, k))
        if padding_mask is None and q.numel():  # one pass over each, where masking takes five
            variances, means = zip(*(torch.var_mean(x, correction=0) for x in (q, k)), strict=True)
            count = torch.full((), q.numel(), device=q.device)
            return cls(count, torch.stack(means), torch.stack(variances) * count)
        if padding_mask is None:
            padding_mask = torch.zeros(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
        hidden = padding_mask[:, None, :, None]
        count = (~hidden).sum() * (q.shape[1] * q.shape[3])
        means, squares = [], []
        for x in (q, k):
            mean = x.masked_fill(hidden, 0.0).sum() / count.clamp(min=1)
            means.append(mean)
            squares.append((x - mean).masked_fill(hidden, 0.0).square().sum())
        return cls(count, torch.stack(means), torch.stack(squares))

    def sigma(self) -> Tensor:
        """The standard deviations of q and k, `(2,)`; 0 for fewer than two values."""
        return (self.squares / (self.count - 1).clamp(min=1)).sqrt()

    def over_workers(self) -> "Moments":
        """The moments of the values of all parallel workers; every worker must call it."""
        if workers.get_data_parallel_world_size() == 1:
            return self
        count, mean, squares = (x.double() for x in (self.count, self.mean, self.squares))
        totals = torch.cat([count[None], count * mean, squares + count * mean.square()])
        workers.all_reduce(totals, workers.get_data_parallel_group())
        count, mean = totals[0], totals[1:3] / totals[0].clamp(min=1)
        squares = (totals[3:] - count * mean.square()).clamp(min=0)
        return Moments(count, mean, squares)
