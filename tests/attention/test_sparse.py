"""What Reformer, BigBird and Longformer share: saving, evaluating twice, extreme inputs, no causal form."""

import pytest
import torch

from user_dir.attention import attention_names, build_attention
from user_dir.errors import UserError
from user_dir.models.layer_plan import parse_layer_plan

OPTIONS = {
    "reformer": {"chunk_size": 8},
    "bigbird": {"block_size": 8},
    "longformer": {"window": 16},
}
# The map of the first token's value.
VALUES = {"reformer": "value", "bigbird": "v_proj", "longformer": "v_proj_global"}
sparse = pytest.mark.parametrize("name", OPTIONS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


def build(name, **options):
    options = {**OPTIONS[name], **options}
    return build_attention(name, 12, 2, causal=False, max_positions=128, **options).eval()


@sparse
def test_saved_and_loaded_it_gives_the_same(name, tmp_path):
    """What was drawn at random is saved with it."""
    first, second = build(name), build(name)
    x = torch.randn(100, 2, 12)
    out, _ = first(x)
    assert torch.equal(first(x)[0], out)
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    second.load_state_dict({key: weights[key] for key, _ in second.named_parameters()}, strict=False)
    assert torch.equal(second(x)[0], out) == (not list(second.buffers()))
    second.load_state_dict(weights)
    assert torch.equal(second(x)[0], out)


@sparse
def test_training_and_evaluation_agree_without_dropout(name):
    module = build(name)
    x = torch.randn(100, 2, 12)
    out, _ = module(x)
    assert torch.equal(module.train()(x)[0], out)
    dropping = build(name, dropout=0.5)
    dropping.load_state_dict(module.state_dict())
    assert torch.equal(dropping(x)[0], out)
    dropping.train()
    assert not torch.allclose(dropping(x)[0], dropping(x)[0])


@sparse
@dtypes
def test_equal_tokens_have_equal_outputs(name, dtype):
    module = build(name).to(dtype)
    x = torch.randn(1, 2, 12).expand(60, -1, -1).to(dtype)
    out, _ = module(x)
    if name == "longformer":  # its first token has maps of its own
        out = out[1:]
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(out, out[:1].expand_as(out), rtol=tolerance, atol=tolerance)


@sparse
@dtypes
def test_one_token_among_padding_and_none_at_all(name, dtype):
    module = build(name).to(dtype)
    x = torch.randn(60, 3, 12).to(dtype).requires_grad_()
    mask = torch.ones(3, 60, dtype=torch.bool)
    mask[0, :1] = mask[1, :30] = False
    out, _ = module(x, key_padding_mask=mask)
    # Alone, a token's output is its own value.
    value = module.get_submodule(VALUES[name])
    torch.testing.assert_close(out[:1, :1], module.out_proj(value(x[:1, :1])))
    out.masked_fill(mask.t().unsqueeze(-1), 0).square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
    assert (x.grad[mask.t()] == 0).all()


@sparse
@dtypes
def test_large_inputs_stay_finite(name, dtype):
    module = build(name).to(dtype)
    x = (30 * (2 * torch.randint(0, 2, (100, 2, 12)) - 1)).to(dtype).requires_grad_()
    out, _ = module(x)
    out.float().square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()


@sparse
def test_there_is_no_causal_form(name):
    message = f"'{name}' attention has no causal form and cannot be in a language model; those that have one"
    with pytest.raises(UserError, match=message):
        build_attention(name, 12, 2, causal=True, max_positions=128)
    with pytest.raises(UserError, match=f"'{name}' has no causal form at character 8 of the layer plan"):
        parse_layer_plan(f"norm*2,{name}", 3, "--decoder-attention", causal=True)
    assert name in attention_names() and name not in attention_names(causal=True)
