"""A residual branch with dropout, and the norm behind it."""

from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from causal_linear_attention import fused

from .dropout import drops
from .norms import is_plain_rms, rms_norm_of_sum


def add_branch(x: Tensor, y: Tensor, dropout: FairseqDropout, kernels: bool) -> Tensor:
    """`x + dropout(y)`, with `kernels` by them where they run."""
    if not (kernels and _fits(x, dropout)):
        return x + dropout(y)
    return rms_norm_of_sum(x, y.to(x.dtype), *_drawn(dropout, x), None, keep=True)[0]


def add_and_norm(
    x: Tensor, y: Tensor, dropout: FairseqDropout, norm: nn.Module, *, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """`x + dropout(y)`, None unless `keep`, and its norm."""
    if not is_plain_rms(norm) or not _fits(x, dropout):
        total = x + dropout(y)
        return total, norm(total)
    return rms_norm_of_sum(x, y.to(x.dtype), *_drawn(dropout, x), norm.eps, keep=keep)


def _fits(x: Tensor, dropout: FairseqDropout) -> bool:
    return fused.runs(x) and dropout.p < 1


def _drawn(dropout: FairseqDropout, x: Tensor) -> tuple[Tensor | None, float]:
    return (fused.new_seed(x.device), dropout.p) if drops(dropout) else (None, 0.0)
