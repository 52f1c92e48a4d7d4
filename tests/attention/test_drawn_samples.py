"""Samples that attentions draw: the same in every process and after a restart, also more than positions."""

import pytest
import torch

from user_dir.attention import build_attention

REDRAWING = [
    ("informer", False, {"factor": 1}),
    ("skyformer", False, {"landmarks": 8}),
    ("reformer", False, {"chunk_size": 8, "redraw": True}),
    ("reformer", True, {"chunk_size": 8, "redraw": True}),
]


def redrawing(name, causal, options):
    return build_attention(name, 12, 2, causal=causal, max_positions=64, **options).double().train()


def begin_update(module, number):
    """Tell the parts of a module the number of the update, as fairseq's models do."""
    for part in module.modules():
        if hasattr(part, "set_num_updates"):
            part.set_num_updates(number)


@pytest.mark.parametrize(("name", "causal", "options"), REDRAWING)
def test_all_workers_draw_the_same_samples_before_each_update(name, causal, options):
    """Draws of dropout in between do not matter; evaluation keeps the last samples."""
    first, second = (redrawing(name, causal, options) for _ in range(2))
    second.load_state_dict(first.state_dict())
    x, seen = torch.randn(40, 2, 12, dtype=torch.float64), []
    for update in range(1, 4):
        torch.rand(update)
        for worker in (first, second):
            begin_update(worker, update)
        seen.append(first(x)[0])
        assert torch.equal(second(x)[0], seen[-1])
        begin_update(first, update)  # of the next batch of the same update
        assert torch.equal(first(x)[0], seen[-1])
    assert not torch.allclose(seen[0], seen[1]) and not torch.allclose(seen[1], seen[2])
    assert torch.equal(first.eval()(x)[0], seen[2])


@pytest.mark.parametrize(("name", "causal", "options"), REDRAWING)
def test_a_restart_draws_what_the_run_would_have(name, causal, options):
    first, resumed = (redrawing(name, causal, options) for _ in range(2))
    begin_update(first, 3)
    saved = {key: value.clone() for key, value in first.state_dict().items()}
    begin_update(resumed, 4)  # fairseq says it before it loads
    resumed.load_state_dict(saved)
    assert all(torch.equal(value, saved[key]) for key, value in resumed.state_dict().items())
    for module in (first, resumed):
        begin_update(module, 4)
    last = first.state_dict()
    assert all(torch.equal(value, last[key]) for key, value in resumed.state_dict().items())
    assert any(not torch.equal(value, saved[key]) for key, value in last.items())


@pytest.mark.parametrize(("name", "causal", "options"), REDRAWING)
def test_checkpoints_without_a_seed_load(name, causal, options):
    module = redrawing(name, causal, options)
    module.load_state_dict({key: x for key, x in module.state_dict().items() if "seed" not in key})


@pytest.mark.parametrize(("name", "causal", "options"), [*REDRAWING, ("performer", True, {"features": 8})])
def test_checkpoints_can_be_averaged(name, causal, options):
    """As fairseq's script does it: integers are summed in their own dtype."""
    module = redrawing(name, causal, options)
    for key, value in module.state_dict().items():
        total = value.clone()
        for _ in range(9):
            total += value
        average = total.div(10) if total.is_floating_point() else total // 10
        torch.testing.assert_close(average, value, msg=key)


@pytest.mark.parametrize(("name", "causal", "options"), REDRAWING)
def test_older_checkpoints_go_on_with_the_same_draws(name, causal, options):
    """They have the seed in one number and draws in int32."""
    first, resumed = (redrawing(name, causal, options) for _ in range(2))
    old = dict(first.state_dict())
    key = next(key for key in old if key.endswith("seed"))
    old[key] = (old[key][0] << 31) + old[key][1]
    old = {key: x.int() if key.endswith("draws") else x for key, x in old.items()}
    resumed.load_state_dict(old)
    for update in (0, 1):  # first the saved ones
        for key, value in first.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[key]), key
        for module in (first, resumed):
            begin_update(module, update + 1)


@pytest.mark.parametrize("name", ["performer", "nystromformer", "skyformer"])
def test_more_features_or_landmarks_than_positions(name):
    """The defaults are the numbers for long rows."""
    module = build_attention(name, 12, 2, causal=False, max_positions=32)
    x = torch.randn(32, 2, 12, requires_grad=True)
    out, _ = module(x, key_padding_mask=torch.arange(32) >= torch.tensor([[32], [7]]))
    torch.testing.assert_close(out[:7, 1:], module(x[:7, 1:])[0], rtol=1e-4, atol=1e-4)
    out.square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
