"""The fused AdamW against fairseq's Adam: parameters, states, and continuing with the other."""

from argparse import Namespace

import pytest
import torch
from fairseq.optim.adam import FairseqAdam

from user_dir.errors import UserError
from user_dir.optim import FusedAdam

SHAPES = [(7, 5), (3,), (), (64, 33)]


def build(kind, parameters, **options):
    settings = {"lr": [0.02], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-3, "weight_decay": 0.05}
    fixed = {"tpu": False, "fp16_adam_stats": False, "use_old_adam": False}
    return kind(Namespace(**{**settings, **fixed, **options}), parameters)


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(x, generator=generator).to(dtype)) for x in SHAPES]


def train(optimizer, trained, start, end):
    """Updates with gradients that depend on their number; the second parameter has one every third time."""
    for update in range(start, end):
        generator = torch.Generator().manual_seed(update)
        for place, x in enumerate(trained):
            gradient = torch.randn(x.shape, generator=generator) * 10.0 ** -(place + 1)
            x.grad = None if place == 1 and update % 3 else gradient.to(x.dtype)
        optimizer.set_lr(0.02 / (1 + update % 4))
        optimizer.step()


def compare(one, other, tolerance):
    for x, y in zip(one.params, other.params, strict=True):
        torch.testing.assert_close(x, y, **tolerance)
    states = [optimizer.optimizer.state_dict() for optimizer in (one, other)]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for place, expected in states[0]["state"].items():
        found = states[1]["state"][place]
        assert found.keys() == expected.keys() and found["step"] == expected["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            assert found[name].dtype == expected[name].dtype
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, {"rtol": 1e-11, "atol": 1e-13}),
        (torch.float32, {"rtol": 1e-5, "atol": 1e-6}),
        (torch.bfloat16, {"rtol": 1e-2, "atol": 1e-3}),
    ],
    ids=["float64", "float32", "bfloat16"],
)
def test_equals_fairseqs_adam(dtype, tolerance):
    """With an epsilon that matters, another rate for every update and parameters that miss some."""
    pair = [build(kind, parameters(dtype)) for kind in (FairseqAdam, FusedAdam)]
    for optimizer in pair:
        train(optimizer, list(optimizer.params), 0, 25)
    compare(*pair, tolerance)


@pytest.mark.parametrize("order", [(FairseqAdam, FusedAdam), (FusedAdam, FairseqAdam)], ids=["to", "from"])
def test_continues_what_the_other_began(order):
    whole = build(FairseqAdam, parameters())
    train(whole, list(whole.params), 0, 20)
    first = build(order[0], parameters())
    train(first, list(first.params), 0, 9)
    second = build(order[1], [torch.nn.Parameter(x.detach().clone()) for x in first.params])
    second.load_state_dict(first.state_dict())
    train(second, list(second.params), 9, 20)
    compare(whole, second, {"rtol": 1e-5, "atol": 1e-6})


def test_fairseq_resumes_either_with_the_other():
    """Its trainer compares the names of the classes."""
    assert FusedAdam.__name__ == FairseqAdam.__name__ and FusedAdam is not FairseqAdam


@pytest.mark.parametrize("flag", ["use_old_adam", "fp16_adam_stats"])
def test_fairseqs_other_adams_are_refused(flag):
    with pytest.raises(UserError, match=f"--{flag.replace('_', '-')} is for --optimizer adam"):
        build(FusedAdam, parameters(), **{flag: True})
