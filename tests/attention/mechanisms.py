"""Every mechanism with every option that changes what it computes: what the tests of the laws run over."""

from dataclasses import dataclass, field

import pytest
import torch

from user_dir.attention import attention_class, build_attention

MAX_POSITIONS = 8192


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of the registry, its options, and where its cost is not linear."""

    name: str
    options: dict = field(default_factory=dict)
    linear_memory: bool = True
    constant_state: bool = True

    @property
    def has_causal_form(self) -> bool:
        return not attention_class(self.name).bidirectional_only


MECHANISMS = {
    "softmax": Mechanism("softmax", constant_state=False),
    "elu": Mechanism("elu"),
    "norm-elu": Mechanism("norm", {"feature_map": "elu"}),
    "norm-1+elu": Mechanism("norm", {"feature_map": "1+elu"}),
    "norm-none": Mechanism("norm", {"positions": "none"}),
    "diag-relu": Mechanism("diag", {"activation": "relu"}),
    "diag-softmax": Mechanism("diag", {"activation": "softmax"}),
    "diag-none-16": Mechanism("diag", {"positions": "none", "block_size": 16}),
    "diag-1": Mechanism("diag", {"activation": "softmax", "block_size": 1}),
}
all_mechanisms = pytest.mark.parametrize("key", MECHANISMS)
causal_mechanisms = pytest.mark.parametrize(
    "key", [key for key, mechanism in MECHANISMS.items() if mechanism.has_causal_form]
)
# Each mechanism in each form that it has.
all_forms = pytest.mark.parametrize(
    ("key", "causal"),
    [
        pytest.param(key, causal, id=f"{key}-{'causal' if causal else 'full'}")
        for key, mechanism in MECHANISMS.items()
        for causal in (True, False)
        if mechanism.has_causal_form or not causal
    ],
)


def build(key, causal, dtype=torch.float32, dim=12, heads=2):
    """The attention in evaluation mode."""
    mechanism = MECHANISMS[key]
    module = build_attention(
        mechanism.name, dim, heads, causal=causal, max_positions=MAX_POSITIONS, **mechanism.options
    )
    return module.to(dtype).eval()
