"""Attentions that cannot be built: a UserError that names the option and the value."""

import math
from dataclasses import fields

import pytest
import torch

from tests.helpers.mechanisms import MECHANISMS, build
from user_dir.attention import attention_class, attention_names, build_attention
from user_dir.errors import UserError
from user_dir.models.layer_plan import parse_layer_plan

# Values outside the range that an option's flag has.
OUT_OF_RANGE = {
    "bigbird": {"block_size": [0], "random_blocks": [-1]},
    "cosformer": {"length": [0]},
    "flash": {"chunk_size": [0], "key_dim": [7]},
    "flash_quad": {"key_dim": [0], "positions": [0], "expansion": [0]},
    "gated": {"value_dim": [0, 7]},
    "informer": {"factor": [0, 65]},
    "linformer": {"rank": [0, 65], "projection": ["fairseq"]},
    "longformer": {"window": [0, 7, -2]},
    "nystromformer": {"landmarks": [0], "conv_width": [4, -1]},
    "performer": {"features": [0], "redraw": [-1]},
    "reformer": {"chunk_size": [0], "rounds": [0], "buckets": [7]},
    "retention": {"value_dim": [0, 7]},
    "skyformer": {"landmarks": [0, 7]},
    "tnn": {"expansion": [0], "network_dim": [0], "network_layers": [0], "decay": [1.5, 0.0]},
    "transformer_ls": {"window": [0, 7], "chunk": [0], "rank": [0, 65]},
}
OTHERS = [
    ("dig", {}, "unknown attention 'dig'; choose one of .*diag, elu, .*, softmax"),
    ("diag", {"block_size": 0}, "block size of diag attention is 0"),
    ("diag", {"block_size": 2.5}, "'block_size' of 'diag' attention is 2.5"),
    ("diag", {"block_size": "4"}, "'block_size' of 'diag' attention is '4'"),
    ("diag", {"block_size": True}, "'block_size' of 'diag' attention is True"),
    ("diag", {"activation": "gelu"}, "no activation 'gelu'; choose one of relu, softmax"),
    ("norm", {"feature_map": "exp"}, "no feature map 'exp'; choose one of elu, 1\\+elu"),
    ("norm", {"positions": "rope"}, "unknown positions 'rope'; choose one of lrpe, none"),
    ("norm", {"block_size": 3}, "'norm' has no option 'block_size'; its options are"),
    ("norm", {"dropout": math.nan}, "dropout of an attention is nan"),
    ("softmax", {"block_size": 3}, "it has no options"),
    ("kernelized", {"landmarks": 8}, "'kernelized' has no option 'landmarks'"),
    ("cosformer", {"length": math.nan}, "'length' of 'cosformer' attention is nan"),
    ("cosformer", {"max_positions": 0}, "max_positions. is 0"),
    ("lln", {"statistics": "global"}, "no statistics 'global'; choose one of running, batch"),
    ("lln", {"a": -1.0}, "a = -1.0, b = 0.0"),
    ("lln", {"a": -1.0, "b": 1.0}, "a = -1.0, b = 1.0"),
    ("lln", {"a": math.nan}, "'a' of 'lln' attention is nan"),
    ("lln", {"b": -0.3}, "a = 0.0, b = -0.3"),
    ("lln", {"beta": 2.0}, "alpha = 0.0, beta = 2.0"),
    ("lln", {"alpha": -1.0, "beta": 2.0}, "alpha = -1.0, beta = 2.0"),
    ("lln", {"alpha": math.inf, "beta": 1.0}, "'alpha' of 'lln' attention is inf"),
    ("lln_diag", {"statistics": "global"}, "no statistics 'global'"),
    ("lln_diag", {"combination": "sum"}, "no combination 'sum'; choose one of average, learnable_scale"),
    ("lln_diag", {"block_size": -1}, "block size of LLN\\+Diag attention is -1"),
]
HUGE = [
    (name, option.name, 10**9)
    for name in attention_names()
    for option in fields(attention_class(name).Options)
    if option.type in (int, int | None) and option.metadata.get("size", True)
]
BIDIRECTIONAL = sorted(name for name in attention_names() if attention_class(name).bidirectional_only)
CAUSAL = sorted(name for name in attention_names() if attention_class(name).causal_only)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        (name, option, value)
        for name, options in OUT_OF_RANGE.items()
        for option, values in options.items()
        for value in values
    ]
    + HUGE,
)
def test_values_out_of_range(name, option, value):
    flag = f"--{name}-{option}".replace("_", "-")
    heads = 1 if name.startswith("flash") else 2
    for causal in {name in CAUSAL, name not in BIDIRECTIONAL}:
        with pytest.raises(UserError, match=f"{flag} is {value!r}; "):
            build_attention(name, 12, heads, causal=causal, max_positions=64, **{option: value})


@pytest.mark.parametrize(("name", "options", "message"), OTHERS)
def test_options_that_cannot_be(name, options, message):
    with pytest.raises(UserError, match=message):
        build_attention(name, 12, 2, causal=name not in BIDIRECTIONAL, **options)


@pytest.mark.parametrize(
    ("width", "heads", "message"),
    [
        (12, 5, "5 attention heads do not divide the width 12; .*-heads must be one of 1, 2, 3, 4, 6, 12$"),
        (12, 0, "0 attention heads do not divide"),
        (13, 2, "2 attention heads do not divide the width 13"),
        (8, 4.0, "4.0 attention heads"),
        (8, "2", "'2' attention heads"),
        (0, 1, r"\(embed_dim\) is 0"),
        (-4, 2, r"\(embed_dim\) is -4"),
        (None, 2, r"\(embed_dim\) is None"),
    ],
)
@pytest.mark.parametrize("name", ["diag", "nystromformer", "transformer_ls"])
def test_widths_and_heads(name, width, heads, message):
    with pytest.raises(UserError, match=message):
        build_attention(name, width, heads, causal=name not in BIDIRECTIONAL)


@pytest.mark.parametrize("name", ["bigbird", "cosformer", "informer", "linformer", "reformer"])
def test_parts_that_depend_on_the_longest_sequence(name):
    message = f"'{name}' attention depends on the longest sequence of the model"
    for causal in {False, name not in BIDIRECTIONAL}:
        with pytest.raises(UserError, match=message):
            build_attention(name, 12, 2, causal=causal)


LIMITED = [key for key, each in MECHANISMS.items() if each.name in ("bigbird", "informer", "linformer")]


@pytest.mark.parametrize("key", LIMITED)
def test_rows_may_be_as_long_as_the_longest_and_padding_longer(key):
    module = build(key, False, torch.float64, longest=64)
    x, place = torch.randn(80, 2, 12, dtype=torch.float64), torch.arange(80)
    out, _ = module(x, key_padding_mask=place >= torch.tensor([[64], [9]]))
    for row, size in enumerate((64, 9)):
        torch.testing.assert_close(out[:size, row], module(x[:size, row : row + 1])[0][:, 0])
    message = f"tokens is longer than the 64 positions of '{MECHANISMS[key].name}' attention; shorten"
    for length, mask in ((80, None), (65, place.expand(2, -1) >= 65)):
        with pytest.raises(UserError, match=f"{length} {message}"):
            module(x, key_padding_mask=mask)


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_there_is_no_causal_form(name):
    message = f"'{name}' attention has no causal form and cannot be in a language model; choose one of"
    with pytest.raises(UserError, match=message):
        build_attention(name, 12, 2, causal=True, max_positions=128)
    with pytest.raises(UserError, match=f"'{name}' has no causal form at character 8 of the layer plan"):
        parse_layer_plan(f"norm*2,{name}", 3, "--decoder-attention", causal=True)
    assert name in attention_names() and name not in attention_names(causal=True)
