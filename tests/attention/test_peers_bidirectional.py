"""What the attentions of encoders share: saving, drawing, extreme inputs, no causal form."""

import pytest
import torch

from user_dir.attention import attention_names, build_attention
from user_dir.errors import UserError
from user_dir.models.layer_plan import parse_layer_plan

OPTIONS = {
    "nystromformer": {"landmarks": 8, "conv_width": 3},
    "linformer": {"rank": 8},
    "skyformer": {"landmarks": 8},
    "kernelized": {},
    "informer": {"factor": 1},
    "transformer_ls": {"window": 8, "rank": 2, "chunk": 8},
}
SPARSE = {"reformer": {"chunk_size": 8}, "bigbird": {"block_size": 8}, "longformer": {"window": 16}}


def forms_of(names):
    """Each name with the forms it has."""
    forms = [(name, False) for name in names] + [("transformer_ls", True)]
    ids = [f"{name}{'-causal' * causal}" for name, causal in forms]
    return pytest.mark.parametrize(("name", "causal"), forms, ids=ids)


forms, all_forms = forms_of(OPTIONS), forms_of([*OPTIONS, *SPARSE])
bidirectional = pytest.mark.parametrize(
    "name", sorted((OPTIONS | SPARSE).keys() - {"transformer_ls", "reformer"})
)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


def build(name, causal, dtype=torch.float32):
    options = {"max_positions": 128, **(OPTIONS | SPARSE)[name]}
    return build_attention(name, 12, 2, causal=causal, **options).to(dtype).eval()


@all_forms
def test_saved_and_loaded_it_gives_the_same(name, causal, tmp_path):
    """What was drawn at random is saved with it."""
    first, second = build(name, causal), build(name, causal)
    x = torch.randn(100, 2, 12)
    out, _ = first(x)
    assert torch.equal(first(x)[0], out)
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    second.load_state_dict({key: weights[key] for key, _ in second.named_parameters()}, strict=False)
    assert torch.equal(second(x)[0], out) == (not list(second.buffers()))
    second.load_state_dict(weights)
    assert torch.equal(second(x)[0], out)


REDRAWING = [
    ("informer", False, {"factor": 1}),
    ("skyformer", False, {"landmarks": 8}),
    ("reformer", False, {"chunk_size": 8, "redraw": True}),
    ("reformer", True, {"chunk_size": 8, "redraw": True}),
]


def redrawing(name, causal, options):
    return build_attention(name, 12, 2, causal=causal, max_positions=64, **options).double().train()


def begin_update(module, number):
    """As fairseq's models do."""
    for part in module.modules():
        if hasattr(part, "set_num_updates"):
            part.set_num_updates(number)


@pytest.mark.parametrize(("name", "causal", "options"), REDRAWING)
def test_all_workers_draw_the_same_samples_before_each_update(name, causal, options):
    """Whatever dropout has drawn meanwhile; evaluation keeps the last ones."""
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


@pytest.mark.parametrize("name", ["performer", "nystromformer", "skyformer"])
def test_more_features_or_landmarks_than_positions(name):
    """The default numbers are those of long rows."""
    module = build_attention(name, 12, 2, causal=False, max_positions=32)
    x = torch.randn(32, 2, 12, requires_grad=True)
    out, _ = module(x, key_padding_mask=torch.arange(32) >= torch.tensor([[32], [7]]))
    torch.testing.assert_close(out[:7, 1:], module(x[:7, 1:])[0], rtol=1e-4, atol=1e-4)
    out.square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()


@forms
@dtypes
def test_equal_tokens(name, causal, dtype):
    """Where neither their number nor their place counts, each of them gets its own value."""
    module = build(name, causal, dtype)
    x = torch.randn(1, 2, 12).expand(100, -1, -1).to(dtype).requires_grad_()
    out, _ = module(x)
    out.float().square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)
    if name == "informer":
        tolerance = 1e-5 if dtype == torch.float32 else 0.02
        value = module.out_proj(module.v_proj(x))
        torch.testing.assert_close(out, value, rtol=tolerance, atol=tolerance)
    if name != "transformer_ls" and name != "nystromformer":  # no position enters them
        torch.testing.assert_close(out, out[:1].expand_as(out), rtol=0.02, atol=0.02)


@forms
@dtypes
def test_one_token_among_padding_and_none_at_all(name, causal, dtype):
    module = build(name, causal, dtype)
    x = torch.randn(60, 3, 12).to(dtype).requires_grad_()
    mask = torch.ones(3, 60, dtype=torch.bool)
    mask[0, :1] = mask[1, :30] = False
    out, _ = module(x, key_padding_mask=mask)
    alone, _ = module(x[:1, :1])
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(out[:1, :1], alone, rtol=tolerance, atol=tolerance)
    out.masked_fill(mask.t().unsqueeze(-1), 0).square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
    assert (x.grad[mask.t()] == 0).all()


@all_forms
@dtypes
@pytest.mark.parametrize("kind", ["signs", "normal"])
def test_large_inputs_stay_finite(name, causal, dtype, kind):
    module = build(name, causal, dtype)
    x = 30.0 * (2 * torch.randint(0, 2, (100, 2, 12)) - 1)
    if kind == "normal":
        x = 30 * torch.randn(100, 2, 12)
    x = x.to(dtype).requires_grad_()
    out, _ = module(x)
    out.float().square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)


@forms
def test_autocast_changes_little(name, causal):
    module = build(name, causal)
    x = torch.randn(60, 2, 12)
    expected, _ = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = module(x)
    assert (out - expected).norm() < 0.1 * expected.norm()


@bidirectional
def test_there_is_no_causal_form(name):
    message = f"'{name}' attention has no causal form and cannot be in a language model; those that have one"
    with pytest.raises(UserError, match=message):
        build_attention(name, 12, 2, causal=True, max_positions=128)
    with pytest.raises(UserError, match=f"'{name}' has no causal form at character 8 of the layer plan"):
        parse_layer_plan(f"norm*2,{name}", 3, "--decoder-attention", causal=True)
    assert name in attention_names() and name not in attention_names(causal=True)
