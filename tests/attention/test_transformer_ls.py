"""Transformer-LS: the causal form against public code, the bidirectional one against its formula."""

import pytest
import torch
from torch.nn.functional import layer_norm

from tests.helpers.golden import check_run, load, state
from user_dir.attention import build_attention


@pytest.mark.parametrize("length", [150, 128])
def test_causal_form_equals_public_code(golden_dir, length):
    """Its weights load under their names."""
    file = "peers_ls_causal.npz"
    module = build_attention("transformer_ls", 32, 4, causal=True, window=32, chunk=16, rank=2)
    module.load_state_dict(state(load(golden_dir, file)))
    check_run(module, golden_dir, file, f"L{length}/no_memory")


def build(causal, dim=12, **options):
    """With weights large enough that every part of the formula shows, in float64."""
    module = build_attention("transformer_ls", dim, 2, causal=causal, **options).double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return module


def sinusoids(distance, width):
    angles = distance * 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.cat([angles.sin(), angles.cos()])[:width]


def pool(weights, y):
    """`sum_t weights[t, head, i] y[t]` within each head, `(r, D)`, of `weights: (N, 2, r)`."""
    parts = zip(weights.unbind(1), y.chunk(2, -1), strict=True)
    return torch.cat([w.T @ part for w, part in parts], -1)


def causal_reference(module, x, w, r, c):
    """One row `x: (N, D)`, query by query and head by head."""
    n, width = x.shape
    d = width // 2
    q, k, v = (f(x) for f in (module.proj_query, module.proj_key, module.proj_val))
    win_k, win_v = (layer_norm(y, [width], *norm(module.dual_ln_win)) for y in (k, v))
    pooled = []
    for start in range(0, n - n % c, c):
        here = slice(start, start + c)
        weights = module.dconv_1(x[here]).view(c, 2, r).softmax(0)
        pair = (layer_norm(pool(weights, y[here]), [width], *norm(module.dual_ln_dproj)) for y in (k, v))
        pooled += zip(*pair, strict=True)
    out = torch.zeros_like(x)
    for t in range(n):
        window = range(max(0, t - w + 1), t + 1)
        keys = [(win_k[j], win_v[j], module.r_net(sinusoids(t - j, width)), True) for j in window]
        for age, pair in enumerate(reversed(pooled[: t // c * r])):
            keys.append((*pair, module.r_net_chunk(sinusoids(age, width)), False))
        for h in (0, 1):
            own = slice(h * d, (h + 1) * d)
            a = q[t, own] / d**0.5
            u, s = module.r_w_bias[0, h, 0, 0], module.r_r_bias[0, h, 0]
            score = [(a + u * near) @ key[own] + (a + s * near) @ place[own] for key, _, place, near in keys]
            out[t, own] = torch.stack(score).softmax(0) @ torch.stack([value[own] for _, value, _, _ in keys])
    return module.proj_out(out)


def norm(module):
    return module.weight, module.bias, module.eps


@pytest.mark.parametrize("sizes", [(6, 2, 5), (2, 1, 1), (8, 3, 30), (4, 1, 4)], ids=str)
@pytest.mark.parametrize("length", [1, 17])
def test_causal_form_equals_its_formula(sizes, length):
    window, rank, chunk = sizes
    module = build(True, window=window, rank=rank, chunk=chunk)
    x = torch.randn(length, 2, 12, dtype=torch.float64)
    out, _ = module(x)
    for row in range(2):
        expected = causal_reference(module, x[:, row], window, rank, chunk)
        torch.testing.assert_close(out[:, row], expected, rtol=1e-9, atol=1e-9)


def full_reference(module, x, w, r):
    """One row `x: (N, D)` of real positions, query by query and head by head."""
    n, width = x.shape
    d = width // 2
    q = module.W_q(x) / d**0.5
    k, v = (layer_norm(f(x), [width], *norm(module.dual_ln_l)) for f in (module.W_k, module.W_v))
    weights = module.dconv_fc(x).view(n, 2, r).softmax(0)
    pooled_k, pooled_v = (layer_norm(pool(weights, y), [width], *norm(module.dual_ln_s)) for y in (k, v))
    out = torch.zeros_like(x)
    for t in range(n):
        start = t // w * w
        window = range(max(0, start - w // 2), min(n, start + w + w // 2))
        keys = torch.cat([pooled_k, k[window]])
        values = torch.cat([pooled_v, v[window]])
        for h in (0, 1):
            own = slice(h * d, (h + 1) * d)
            out[t, own] = torch.softmax(keys[:, own] @ q[t, own], 0) @ values[:, own]
    return module.W_o(out)


@pytest.mark.parametrize("sizes", [(4, 3), (2, 1), (30, 5)], ids=str)
@pytest.mark.parametrize("length", [1, 8, 23])
def test_bidirectional_form_equals_its_formula(sizes, length):
    window, rank = sizes
    module = build(False, window=window, rank=rank)
    lengths = [length, max(1, length - 3)]
    x = torch.randn(length, 2, 12, dtype=torch.float64)
    padding = torch.arange(length) >= torch.tensor(lengths)[:, None]
    out, _ = module(x, key_padding_mask=padding)
    for row, n in enumerate(lengths):
        expected = full_reference(module, x[:n, row], window, rank)
        torch.testing.assert_close(out[:n, row], expected, rtol=1e-9, atol=1e-9)


def test_defaults_are_the_papers():
    causal = build_attention("transformer_ls", 12, 2, causal=True)
    assert (causal.window, causal.rank, causal.chunk) == (64, 1, 32)
    full = build_attention("transformer_ls", 12, 2, causal=False)
    assert (full.window, full.rank) == (8, 32)


@torch.no_grad()
def test_decoding_state_grows_with_the_pooled_vectors_only():
    module = build(True, window=4, chunk=8)
    state: dict = {}
    sizes = {}
    for t in range(1, 66):
        module(torch.randn(1, 1, 12, dtype=torch.float64), incremental_state=state)
        own = next(iter(state.values()))
        sizes[t] = {name: x.numel() for name, x in own.items() if isinstance(x, torch.Tensor)}
    pooled = [size.pop("pooled") for size in sizes.values()]
    assert len({tuple(size.values()) for size in sizes.values()}) == 1
    assert pooled[0] == 2 * 12 and 8 * 2 * 12 <= pooled[-1] <= 16 * 2 * 12


def test_decoding_computes_its_positions_once_and_a_while():
    module = build(True, window=4, chunk=2)
    calls = []
    module.r_net_chunk.register_forward_hook(lambda *_: calls.append(1))
    state: dict = {}
    for _ in range(64):
        module(torch.randn(1, 1, 12, dtype=torch.float64), incremental_state=state)
    assert len(calls) < 9
