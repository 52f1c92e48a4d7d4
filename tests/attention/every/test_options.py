"""Options, masks that are built in, first values and the parts that attentions share."""

import math

import pytest
import torch

from user_dir.attention import build_attention
from user_dir.attention.parts.features import one_plus_elu
from user_dir.errors import UserError
from user_dir.modules import LRPE, RMSNorm, SinusoidalPositions


def test_calls_that_cannot_be_honoured():
    x = torch.randn(4, 1, 12)
    full = build_attention("norm", 12, 2, causal=False)
    with pytest.raises(ValueError, match="self-attention"):
        full(x, torch.randn(4, 1, 12), x)
    with pytest.raises(ValueError, match="needs a causal attention"):
        full(x, incremental_state={})
    with pytest.raises(ValueError, match="cannot apply an attn_mask"):
        full(x, attn_mask=torch.zeros(4, 4))


FUTURE = torch.full((5, 5), -math.inf).triu(1)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_the_future_mask_is_built_in(length):
    attention = build_attention("norm", 12, 2, causal=True).eval()
    x, mask = torch.randn(length, 2, 12), FUTURE[:length, :length]
    expected = attention(x)[0]
    for accepted in (mask, mask.half(), mask.bool()):
        assert torch.equal(attention(x, attn_mask=accepted)[0], expected)


@pytest.mark.parametrize(
    "mask",
    [
        FUTURE[:4, :4],
        FUTURE[:, :4],
        torch.zeros(5, 5),
        FUTURE.mT,
        FUTURE + torch.full((5, 5), -math.inf).tril(-3),  # a window
        FUTURE.where(torch.arange(5) >= 2, 0.0),  # a prefix that is seen as a whole
        FUTURE + torch.arange(5.0),  # biases
        torch.ones(5, 5, dtype=torch.bool).tril(),
        torch.full((5, 5), -math.inf),
        FUTURE.tolist(),
    ],
    ids=["short", "flat", "nothing", "past", "window", "prefix", "biases", "inverted", "all", "list"],
)
def test_another_attn_mask_is_refused(mask):
    attention = build_attention("norm", 12, 2, causal=True)
    with pytest.raises(UserError, match="not the future mask of 5 positions, .*; NormAttention can"):
        attention(torch.randn(5, 2, 12), attn_mask=mask)


def spans(found, bound):
    """Whether values are drawn from -bound to bound: the largest of many is near the end."""
    return 0.9 * bound < found.abs().max() <= bound


def test_initialisation():
    for name, gain in (("diag", 1.0), ("norm", 2**-0.5), ("elu", 2**-0.5), ("softmax", 2**-0.5)):
        module = build_attention(name, 64, 4, causal=True)
        for projection in (module.q_proj, module.k_proj, module.v_proj):
            assert spans(projection.weight, gain * (6 / 128) ** 0.5)
        assert spans(module.out_proj.weight, (6 / 128) ** 0.5)
        assert (module.out_proj.bias == 0).all()


def test_performer_starts_as_linear_layers_do():
    module = build_attention("performer", 64, 4, causal=True)
    for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
        assert spans(projection.weight, 1 / 8) and spans(projection.bias, 1 / 8)


def test_first_angles_of_positions():
    """One of every pair of channels of a head, or one of each channel of all heads."""
    pairs, channels = torch.arange(4.0), torch.arange(24.0)
    torch.testing.assert_close(LRPE(8).theta.flatten(), 10000 ** (-2 * pairs / 8))
    theta = build_attention("lightning", 24, 2, causal=True).lrpe.theta
    torch.testing.assert_close(theta.flatten(), 10000 ** (-2 * channels / 24))


@pytest.mark.parametrize("causal", [True, False])
def test_elu_without_denominator_is_the_plain_sum(causal):
    module = build_attention("elu", 12, 2, causal=causal, normalizer="none").double()
    x = torch.randn(20, 3, 12, dtype=torch.float64)
    q, k, v = (module.heads(f(x)) for f in (module.q_proj, module.k_proj, module.v_proj))
    weights = one_plus_elu(q) @ one_plus_elu(k).mT
    out = (weights.tril() if causal else weights) @ v
    expected = module.out_proj(out.permute(2, 0, 1, 3).flatten(2))
    torch.testing.assert_close(module(x)[0], expected)
    if causal:
        state: dict = {}
        steps = [module(x[i : i + 1], incremental_state=state)[0] for i in range(20)]
        torch.testing.assert_close(torch.cat(steps), expected)


def test_feature_map_keeps_small_values():
    x = torch.tensor([-60.0, -20.0, -1.0, 0.0, 3.0, 200.0], requires_grad=True)
    out = one_plus_elu(x)
    expected = torch.where(x > 0, 1 + x, x.double().clamp(max=0).exp().float())
    torch.testing.assert_close(out, expected.float())
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, torch.where(x >= 0, torch.ones_like(x), x.detach().exp()))


@pytest.mark.parametrize("dim", [1, 3, 8])
def test_lrpe_depends_on_distance_only(dim):
    module = LRPE(dim).double()
    q, k = torch.randn(2, 1, dim, dtype=torch.float64)
    products = [(module(q, torch.tensor([m])) * module(k, torch.tensor([m - 5]))).sum() for m in (5, 9, 400)]
    torch.testing.assert_close(products[0], products[1])
    torch.testing.assert_close(products[0], products[2])
    torch.testing.assert_close(module(q, torch.tensor([7])).norm(), q.norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rmsnorm_gradient_at_zero_is_finite(dtype):
    x = torch.zeros(2, 8, dtype=dtype)
    x[1] = 1e-7
    x.requires_grad_()
    out = RMSNorm()(x)
    assert (out[0] == 0).all() and torch.isfinite(out).all()
    (gradient,) = torch.autograd.grad(out[0].sum(), x)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("width", [32, 33])
def test_sinusoidal_positions_equal_fairseq(width):
    from fairseq.modules import SinusoidalPositionalEmbedding

    table = SinusoidalPositionalEmbedding(width, 1, 300)
    tokens = torch.full((1, 200), 5)
    rows = SinusoidalPositions(width, 1)(torch.arange(200)[None])
    torch.testing.assert_close(rows, table(tokens), atol=2e-5, rtol=0)
