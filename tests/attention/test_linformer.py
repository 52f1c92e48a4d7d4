"""Linformer against arrays of public code, in its three forms, and its length limit."""

import pytest
import torch

from tests.helpers.golden import check_run, load, relative, state
from user_dir.attention import build_attention
from user_dir.errors import UserError

PROJECTIONS = ["heads", "separate", "shared"]


@pytest.mark.parametrize("length", [150, 128])
@pytest.mark.parametrize("run", ["full", "padded"])
def test_one_matrix_a_head_equals_public_code(golden_dir, length, run):
    arrays = state(load(golden_dir, "peers_linformer.npz"), f"L{length}/")
    module = build_attention("linformer", 32, 4, causal=False, max_positions=length, rank=24)
    module.load_state_dict({"E": arrays["E"]}, strict=False)
    q, k, v = (arrays[name].requires_grad_() for name in "qkv")
    padding = torch.arange(length) >= torch.tensor([[length], [100]]) if run == "padded" else None
    out = module.attend(q, k, v, padding)
    out.backward(arrays["cotangent"])
    assert relative(out, arrays[f"{run}/output"]) < 1e-5
    for name, x in zip("qkv", (q, k, v), strict=True):
        assert relative(x.grad, arrays[f"{run}/grad_{name}"]) < 5e-5
    assert relative(module.E.grad, arrays[f"{run}/grad/E"]) < 5e-5


@pytest.mark.parametrize("length", [150, 128])
@pytest.mark.parametrize(("form", "projection"), [("fairseq", "separate"), ("fairseq_shared", "shared")])
def test_form_of_fairseq_equals_its_example(golden_dir, length, form, projection):
    """Its weights load under their names."""
    file = "peers_linformer.npz"
    module = build_attention(
        "linformer", 32, 4, causal=False, max_positions=160, rank=40, projection=projection
    )
    module.load_state_dict(state(load(golden_dir, file), f"{form}/state/"))
    check_run(module, golden_dir, file, f"{form}/L{length}/full")


def build(projection="heads", **options):
    options = {"max_positions": 32, "rank": 6, **options}
    return build_attention("linformer", 12, 2, causal=False, projection=projection, **options)


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_rows_may_be_as_long_as_the_longest_and_padding_longer(projection):
    module = build(projection).double().eval()
    x = torch.randn(40, 2, 12, dtype=torch.float64)
    padding = torch.arange(40) >= torch.tensor([[32], [9]])
    out, _ = module(x, key_padding_mask=padding)
    torch.testing.assert_close(out[:32, 0], module(x[:32, :1])[0][:, 0])
    torch.testing.assert_close(out[:9, 1], module(x[:9, 1:])[0][:, 0])
    for call in ({}, {"key_padding_mask": torch.arange(40).expand(2, -1) >= 33}):
        with pytest.raises(UserError, match="longer than the 32 positions of 'linformer' attention; shorten"):
            module(x, **call)


def test_the_matrix_is_a_parameter_that_trains_and_is_saved():
    module = build()
    module(torch.randn(20, 2, 12))[0].square().sum().backward()
    assert module.E.grad[:, :, :20].abs().min() > 0 and (module.E.grad[:, :, 20:] == 0).all()
    assert module.E.shape == (2, 6, 32) and "E" in module.state_dict()
    assert abs(module.E.std() - 0.02) < 0.005


def test_dropout_acts_on_the_weights_in_training():
    module = build(dropout=0.5)
    x = torch.randn(20, 2, 12)
    assert not torch.allclose(module(x)[0], module(x)[0])
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "--linformer-rank is 0; it must be a number from 1 up"),
        ({"rank": 33}, "--linformer-rank is 33; it must be a number from 1 to 32, the longest sequence"),
        (
            {"projection": "fairseq"},
            "--linformer-projection is 'fairseq'; choose one of heads, separate",
        ),
        ({"max_positions": None}, "'linformer' attention depends on the longest sequence of the model"),
    ],
)
def test_user_errors(options, message):
    with pytest.raises(UserError, match=message):
        build(**options)
