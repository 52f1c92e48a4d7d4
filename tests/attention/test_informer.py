"""Informer against its formula written query by query and its samples."""

import math

import pytest
import torch

from user_dir.attention import build_attention


def build(dim=12, **options):
    options = {"max_positions": 64, **options}
    return build_attention("informer", dim, 2, causal=False, **options).double().eval()


def reference(q, k, v, draws, factor):
    """One head of one row of real positions."""
    n, d = q.shape
    count = max(factor * math.ceil(math.log(n)), 1)
    scores = []
    for i in range(n):
        products = [float(q[i] @ k[int(u / 2**31 * n)]) for u in draws[i, :count].tolist()]
        scores.append(max(products) - sum(products) / n)
    exact = sorted(range(n), key=lambda i: -scores[i])[: min(count, n)]
    out = v.mean(0).repeat(n, 1)
    for i in exact:
        out[i] = torch.softmax(q[i] @ k.T / d**0.5, -1) @ v
    return out


@pytest.mark.parametrize("lengths", [(1, 1), (2, 1), (20, 8), (55, 21)], ids=str)
def test_equals_its_formula(lengths):
    """54 < e^4 < 55: rows have their own numbers of samples and exact queries."""
    module = build(factor=2)
    longest = max(lengths)
    q, k, v = torch.randn(3, 2, 2, longest, 6, dtype=torch.float64)
    padding = torch.arange(longest) >= torch.tensor(lengths)[:, None]
    out = module.attend(q, k, v, padding)
    for row, n in enumerate(lengths):
        for head in range(2):
            real = (x[row, head, :n] for x in (q, k, v))
            expected = reference(*real, module.sampled.draws, 2)
            torch.testing.assert_close(out[row, head, :n], expected, rtol=1e-9, atol=1e-9)


def test_padding_changes_nothing_where_queries_tie():
    module = build(factor=2)
    x = torch.randn(4, 12, dtype=torch.float64)[torch.randint(4, (40, 8))]  # of four symbols
    padded = torch.cat([x, torch.zeros(24, 8, 12, dtype=torch.float64)])
    padding = (torch.arange(64) >= 40).expand(8, -1)
    torch.testing.assert_close(module(padded, key_padding_mask=padding)[0][:40], module(x)[0])


def test_most_queries_of_a_long_row_get_the_mean():
    module = build(factor=1)
    v = torch.randn(1, 2, 64, 6, dtype=torch.float64)
    q, k = torch.randn(2, 1, 2, 64, 6, dtype=torch.float64)
    same = (module.attend(q, k, v, None) - v.mean(2, keepdim=True)).abs().amax(-1) < 1e-12
    assert (same.sum(-1) == 64 - 5).all()  # ceil(ln 64) are exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
def test_with_every_query_exact_it_is_softmax(dtype):
    module = build(factor=30)
    exact = build_attention("softmax", 12, 2, causal=False).double().eval()
    exact.load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(50, 2, 12, dtype=torch.float64)
    padding = torch.arange(50) >= torch.tensor([[50], [13]])
    expected, _ = exact(x, key_padding_mask=padding)
    out, _ = module.to(dtype)(x.to(dtype), key_padding_mask=padding)
    real = ~padding.t()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(out[real].double(), expected[real], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("longest", "factor", "count"), [(4096, 16, 144), (2048, 17, 136), (1024, 19, 133), (2, 128, 128)]
)
def test_usual_numbers_of_samples(longest, factor, count):
    module = build(max_positions=longest)
    assert module.factor == factor and module.sampled.draws.shape == (longest, count)
