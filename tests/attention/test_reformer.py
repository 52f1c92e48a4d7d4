"""Reformer's attention against arrays of public code and its formula, token by token."""

import pytest
import torch

from tests.helpers.golden import load, relative, state
from user_dir.attention import build_attention
from user_dir.attention import reformer_hashing as hashing
from user_dir.attention.reformer_hashing import bucket_count


def build(longest, dim=32, heads=4, **options):
    options = {"chunk_size": 16, **options}
    return build_attention("reformer", dim, heads, causal=False, max_positions=longest, **options).eval()


def reference(x, v, rotations, chunk, n):
    """One row of one head, `x, v: (N, d)` of which n are real; N is a multiple of `chunk`.

    `rotations: (d, rounds, buckets / 2)`. Chunks are counted through all rounds, in a circle.
    """
    width, d = x.shape
    key = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() / d**0.5
    line = []
    rounds = rotations.shape[1]
    for r in range(rounds):
        turned = x @ rotations[:, r]
        bucket = torch.cat([turned, -turned], -1).argmax(-1).tolist()
        line += sorted(range(width), key=lambda i: (i >= n, bucket[i], i))
    chunks = [line[start : start + chunk] for start in range(0, len(line), chunk)]
    results = [[] for _ in range(n)]
    for c, queries in enumerate(chunks):
        keys = chunks[c - 1] + queries
        for i in queries:
            if i < n:
                score = torch.stack([x[i] @ key[j] for j in keys])
                score = torch.where(torch.tensor([j >= n for j in keys]), -1e9, score)
                score = torch.where(torch.tensor([j == i for j in keys]), -1e5, score)
                results[i].append((torch.softmax(score, 0) @ v[keys], score.logsumexp(0)))
    merged = []
    for found in results:
        share = torch.softmax(torch.stack([mass for _, mass in found]), 0)
        merged.append(sum(s * out for s, (out, _) in zip(share, found, strict=True)))
    return torch.stack(merged)


@torch.no_grad()
def from_reference(module, x, size, width):
    """The first `size` tokens of one row, as `reference` has them in a row of `width`, `(size, D)`."""
    x = torch.cat([x[:size], x.new_zeros(width - size, x.shape[1])])
    qk, v = (f(x).unflatten(1, (module.num_heads, -1)) for f in (module.query_key, module.value))
    heads = [
        reference(qk[:, h], v[:, h], module.rotations[h], module.options.chunk_size, size)
        for h in range(module.num_heads)
    ]
    return module.out_proj(torch.cat(heads, -1))


def load_arrays(golden_dir, length):
    """The arrays and a module with their weights, whose output map is the identity."""
    arrays = load(golden_dir, "peers_reformer.npz")
    module = build(length)
    weights = {
        **state(arrays),
        "rotations": torch.tensor(arrays[f"L{length}/rotations"]),
        "out_proj.weight": torch.eye(32),
        "out_proj.bias": torch.zeros(32),
    }
    module.load_state_dict(weights)
    return arrays, module


def test_equals_public_code(golden_dir):
    arrays, module = load_arrays(golden_dir, 128)
    x = torch.tensor(arrays["L128/input"]).transpose(0, 1).requires_grad_()
    out, _ = module(x)
    assert relative(out.transpose(0, 1), arrays["L128/full/output"]) < 1e-5
    out.transpose(0, 1).backward(torch.tensor(arrays["L128/cotangent"]))
    assert relative(x.grad.transpose(0, 1), arrays["L128/full/grad_input"]) < 5e-5
    for name in ("query_key.weight", "value.weight"):
        gradient = module.get_parameter(name).grad
        assert relative(gradient, arrays[f"L128/full/grad/{name}"]) < 5e-5


@pytest.mark.parametrize(("length", "sizes"), [(128, (128, 100)), (160, (150, 100))])
def test_padding(golden_dir, length, sizes):
    """The first row reaches its last chunk and equals public code; the second is, with the chunk before the
    first that public code takes (of padding alone), the arrays, and with its own last chunk our attention."""
    arrays, module = load_arrays(golden_dir, length)
    x = torch.tensor(arrays[f"L{length}/input"]).requires_grad_()
    mask = torch.arange(length) >= torch.tensor(sizes)[:, None]
    out = module(x.transpose(0, 1), key_padding_mask=mask)[0].transpose(0, 1)
    theirs = torch.tensor(arrays[f"L{length}/padded/output"])
    assert relative(out[0, : sizes[0]], theirs[0, : sizes[0]]) < 1e-5
    cotangent = torch.tensor(arrays[f"L{length}/cotangent"]).masked_fill(mask.unsqueeze(-1), 0.0)
    out.backward(cotangent)
    assert relative(x.grad[0], arrays[f"L{length}/padded/grad_input"][0]) < 5e-5
    module, row = module.double(), x[1].detach().double()
    ours = from_reference(module, row, sizes[1], 112)
    assert relative(out[1, : sizes[1]], ours.float()) < 1e-5
    as_public = from_reference(module, row, sizes[1], length)
    assert relative(as_public.float(), theirs[1, : sizes[1]]) < 1e-5


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("chunk", [1, 8])
def test_equals_the_formula_on_ragged_rows(chunk, rounds):
    module = build(64, 12, 2, chunk_size=chunk, rounds=rounds).double()
    sizes = [45, 24, 17, 8, 7, 2, 1]
    x = torch.randn(45, len(sizes), 12, dtype=torch.float64)
    out, _ = module(x, key_padding_mask=torch.arange(45) >= torch.tensor(sizes)[:, None])
    for row, size in enumerate(sizes):
        expected = from_reference(module, x[:, row], size, -(-size // chunk) * chunk)
        torch.testing.assert_close(out[:size, row], expected)


def test_a_row_in_one_chunk_is_attention_without_hashing():
    """Every token sees every other; itself only where it is alone."""
    module = build(64, 12, 1).double()
    for length in (16, 5, 1):
        x = torch.randn(length, 1, 12, dtype=torch.float64)
        qk, v = module.query_key(x[:, 0]), module.value(x[:, 0])
        key = qk / (qk.square().mean(-1, keepdim=True) + 1e-6).sqrt() / 12**0.5
        scores = (qk @ key.T).masked_fill(torch.eye(length, dtype=torch.bool), -1e5)
        expected = module.out_proj(torch.softmax(scores, -1) @ v)
        torch.testing.assert_close(module(x)[0][:, 0], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_half_precision_is_near_where_the_order_is_the_same(dtype, monkeypatch):
    """Rounding may move a token to another bucket; with the order held fixed, half precision is as near as
    that of other mechanisms."""
    module = build(256, 12, 2, rounds=3)
    half = build(256, 12, 2, rounds=3).to(dtype)
    half.load_state_dict(module.state_dict())
    x = torch.randn(150, 2, 12)
    orders, order = [], module._order
    monkeypatch.setattr(module, "_order", lambda *args: orders.append(order(*args)) or orders[0])
    monkeypatch.setattr(half, "_order", lambda *args: orders[0])
    expected, _ = module(x)
    out, _ = half(x.to(dtype))
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (0.05 if dtype == torch.bfloat16 else 0.01)


def test_buckets_follow_the_longest_sequence():
    assert [bucket_count(n, 64) for n in (16, 64, 127, 128, 192, 512, 4096)] == [2, 2, 2, 4, 4, 16, 128]
    assert build(512).rotations.shape == (4, 8, 2, 32)


@pytest.mark.parametrize("length", [0, 1, 70])
def test_hashing_a_few_queries_at_a_time_changes_nothing(monkeypatch, length):
    module = build(128, rounds=3)
    x = torch.randn(2, 4, length, 8)
    whole = module.hash(x)
    assert whole.shape == (2, 4, 3, length)
    monkeypatch.setattr(hashing, "DISTANCES", 5000)  # of 13 queries
    assert torch.equal(module.hash(x), whole)


def test_hashing_is_not_rounded_under_autocast():
    module, x = build(256), torch.randn(2, 4, 256, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module.hash(x)
    assert torch.equal(found, module.hash(x))
