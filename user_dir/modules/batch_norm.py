"""Batch normalisation over the real positions of a batch (Ioffe and Szegedy 2015)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype


class BatchNorm(nn.BatchNorm1d):
    """Each channel over all positions of all rows that are not padding; running statistics in evaluation.

    An encoder says where padding is with `tell_padding` before its layers run, a checkpointed layer each time
    it runs; padding gives zeros. Computed in float32 for half precision, with running statistics that stay
    float32. Only batches that record gradients enter them, so that activation checkpointing, which runs a
    layer twice, counts a batch once. Every worker has its own statistics until a validation gives all of
    them the mean (`fairseq_patches.run_state.share_statistics`); worker 0's are saved.
    """

    padding_mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """`(N, B, D)`; returns the same shape and dtype."""
        if self.padding_mask is None:
            return self._normalised(x.flatten(0, 1)).view_as(x)
        real = ~self.padding_mask.t()
        return torch.zeros_like(x).masked_scatter(real.unsqueeze(-1), self._normalised(x[real]))

    def _normalised(self, x: Tensor) -> Tensor:
        wide = x.to(accumulation_dtype(x.dtype))
        mean, variance = self.running_mean, self.running_var
        if self.training and not torch.is_grad_enabled():
            mean = variance = None
        scale = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        out = F.batch_norm(wide, mean, variance, *scale, self.training, self.momentum, self.eps)
        return out.to(x.dtype)

    def _apply(self, fn, recurse=True):
        before = self.running_mean, self.running_var
        super()._apply(fn, recurse)
        if self.running_mean.element_size() < 4:  # steps of the average would be rounded away
            device = self.running_mean.device
            self.running_mean, self.running_var = (x.to(device) for x in before)
        return self


def tell_padding(model: nn.Module, padding_mask: Tensor | None) -> None:
    """Tell the batch norms inside `model` where padding is: bool `(B, N)`, True at padding, or None."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.padding_mask = padding_mask
