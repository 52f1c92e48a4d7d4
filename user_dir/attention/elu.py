"""The linear transformer's attention (Katharopoulos et al. 2020): 1 + elu with a normaliser."""

from torch import Tensor

from .features import one_plus_elu
from .linear import LinearAttention
from .registry import register_attention


@register_attention("elu")
class EluAttention(LinearAttention):
    """`phi(q) S / (phi(q) . z + 1e-6)`, `phi = 1 + elu`, without rotary positions or scaling."""

    normalize = True

    def features(self, x: Tensor, positions: Tensor) -> Tensor:
        """See `LinearAttention.features`."""
        return one_plus_elu(x)
