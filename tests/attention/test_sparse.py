"""What Reformer, BigBird and Longformer share: training like evaluation, equal and single tokens."""

import pytest
import torch

from user_dir.attention import build_attention

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
