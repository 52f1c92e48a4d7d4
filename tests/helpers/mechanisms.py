"""Every mechanism with every option that changes its results: the cases of the tests of the laws."""

from dataclasses import dataclass, field

import pytest
import torch

from user_dir.attention import attention_class, build_attention

MAX_POSITIONS = 8192


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of the registry, its options and place in a model, and where its cost is not linear."""

    name: str
    options: dict = field(default_factory=dict)
    place: tuple[int, int] = (0, 1)
    linear_memory: bool = True
    linear_causal_memory: bool = True
    constant_state: bool = True
    # False where the content decides which tokens are seen, so that rounding may change it.
    continuous: bool = True

    @property
    def has_causal_form(self) -> bool:
        return not attention_class(self.name).bidirectional_only

    @property
    def has_bidirectional_form(self) -> bool:
        return not attention_class(self.name).causal_only


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
    "performer": Mechanism("performer", {"features": 16}),
    "cosformer": Mechanism("cosformer"),
    "flash": Mechanism("flash", {"key_dim": 6, "positions": 40}),
    "flash-16": Mechanism("flash", {"key_dim": 6, "chunk_size": 16}),
    # Quadratic, and its keys and values are all kept.
    "flash_quad": Mechanism(
        "flash_quad", {"key_dim": 6, "positions": 40}, linear_memory=False, constant_state=False
    ),
    # A Toeplitz matrix has no state of constant size: decoding reads all values.
    "tnn": Mechanism("tnn", {"network_dim": 16, "network_layers": 2}, constant_state=False),
    "retention": Mechanism("retention"),
    "retention-8": Mechanism("retention", {"value_dim": 8}),
    "lightning": Mechanism("lightning"),
    "lightning-second": Mechanism("lightning", place=(1, 3)),
    "gated": Mechanism("gated", {"value_dim": 6}),
    "lln": Mechanism("lln"),
    "lln_diag": Mechanism("lln_diag"),
    "lln_diag-scale-16": Mechanism("lln_diag", {"combination": "learnable_scale", "block_size": 16}),
    "lln_diag-ratio": Mechanism("lln_diag", {"combination": "learnable_ratio"}),
    "reformer": Mechanism("reformer", continuous=False),
    "reformer-16-3": Mechanism("reformer", {"chunk_size": 16, "rounds": 3}, continuous=False),
    "reformer-8-5-redraw": Mechanism(
        "reformer", {"chunk_size": 8, "rounds": 5, "buckets": 6, "redraw": True}, continuous=False
    ),
    "bigbird": Mechanism("bigbird"),
    "bigbird-8-0": Mechanism("bigbird", {"block_size": 8, "random_blocks": 0}),
    "longformer": Mechanism("longformer"),
    "longformer-32": Mechanism("longformer", {"window": 32}),
    "nystromformer": Mechanism("nystromformer", {"landmarks": 16}),
    "nystromformer-conv": Mechanism("nystromformer", {"landmarks": 7, "conv_width": 5}),
    "linformer": Mechanism("linformer", {"rank": 16}),
    "linformer-separate": Mechanism("linformer", {"rank": 16, "projection": "separate"}),
    "linformer-shared": Mechanism("linformer", {"rank": 16, "projection": "shared"}),
    "skyformer": Mechanism("skyformer", {"landmarks": 16}),
    "kernelized": Mechanism("kernelized", linear_memory=False),
    # N ln N; rounding may change which queries are exact.
    "informer": Mechanism("informer", {"factor": 2}, linear_memory=False, continuous=False),
    # The vectors pooled from chunks, which every later query of a language model sees, grow in number.
    "transformer_ls": Mechanism("transformer_ls", linear_causal_memory=False, constant_state=False),
    "transformer_ls-16-2": Mechanism(
        "transformer_ls",
        {"window": 16, "rank": 2, "chunk": 8},
        linear_causal_memory=False,
        constant_state=False,
    ),
}
WITH_DROPOUT = (
    "softmax",
    "diag",
    "lln_diag",
    "reformer",
    "bigbird",
    "longformer",
    "linformer",
    "kernelized",
    "informer",
    "transformer_ls",
)
"""The names of the mechanisms that form weights."""


def causal_without(*keys: str) -> pytest.MarkDecorator:
    """Parametrises `key` with the mechanisms that have a causal form, except some."""
    return pytest.mark.parametrize(
        "key", [key for key, one in MECHANISMS.items() if one.has_causal_form and key not in keys]
    )


causal_mechanisms = causal_without()


def forms_of(
    *names: str, without: tuple[str, ...] = (), exhaustive: tuple[str, ...] = ()
) -> pytest.MarkDecorator:
    """`key` and `causal`: the mechanisms of these names, or all of them, in each form that they have.

    `without` are the keys of some that are left out, `exhaustive` those of some that get that mark.
    """
    forms = [
        pytest.param(
            key,
            causal,
            id=f"{key}-{'causal' if causal else 'full'}",
            marks=pytest.mark.exhaustive if key in exhaustive else (),
        )
        for key, mechanism in MECHANISMS.items()
        for causal in (True, False)
        if (not names or mechanism.name in names) and key not in without
        if (mechanism.has_causal_form if causal else mechanism.has_bidirectional_form)
    ]
    return pytest.mark.parametrize(("key", "causal"), forms)


all_forms = forms_of()


def build(key, causal, dtype=torch.float32, dim=12, heads=2, longest=MAX_POSITIONS, dropout=0.0):
    """The attention in evaluation mode."""
    mechanism = MECHANISMS[key]
    module = build_attention(
        mechanism.name,
        dim,
        heads,
        causal=causal,
        dropout=dropout,
        max_positions=longest,
        place=mechanism.place,
        **mechanism.options,
    )
    return module.to(dtype).eval()


def ragged(length, batch, seed=0):
    """A padding mask `(batch, length)` whose rows end at different places; the first one has none."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, length + 1, (batch,), generator=generator)
    sizes[0] = length
    return sizes, torch.arange(length) >= sizes[:, None]
