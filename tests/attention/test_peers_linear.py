"""Performer and cosFormer: the authors' arrays, the running maximum, redraws, the fixed length."""

import pytest
import torch

from tests.helpers.golden import check, check_attend, load, relative, state
from user_dir.attention import build_attention
from user_dir.attention import performer as performer_module
from user_dir.attention.parts.new_tokens import NewTokens
from user_dir.attention.performer import orthogonal_features
from user_dir.errors import UserError

runs = pytest.mark.parametrize("run", ["L150", "L128"])
kinds = pytest.mark.parametrize("kind", ["full", "causal"])


def performer(causal=True, dtype=torch.float64, **options):
    return build_attention("performer", 32, 4, causal=causal, **{"features": 16, **options}).to(dtype).eval()


@runs
@kinds
def test_performer_of_the_paper(golden_dir, run, kind):
    arrays = load(golden_dir, "peers_performer.npz")
    module = performer(kind == "causal", torch.float32, paper=True)
    module.load_state_dict(state(arrays))
    check(module, arrays, f"{run}/{kind}/")


def test_features_of_the_paper(golden_dir):
    arrays = load(golden_dir, "peers_performer.npz")
    module = performer(False, torch.float32, paper=True)
    module.load_state_dict(state(arrays))
    q, k, _ = module._projections(torch.tensor(arrays["L150/input"]))
    for name, features in zip(("phi_q", "phi_k"), module._features_of_the_paper(q, k, None), strict=True):
        assert relative(features, arrays[f"L150/{name}"]) < 1e-5


@runs
@pytest.mark.parametrize(("file", "kind"), [("fast", "full"), ("fast_first", "causal")])
def test_performer_equals_performer_pytorch(golden_dir, run, file, kind):
    arrays = load(golden_dir, "peers_performer.npz")
    module = performer(kind == "causal", torch.float32)
    module.eval_proj.copy_(torch.tensor(arrays["fast/projection_matrix"]).expand(4, -1, -1))
    check_attend(module, arrays, f"{file}/{run}", f"{file}/{run}/{kind}")


@runs
def test_performer_equals_performer_pytorch_once_the_largest_key_was_seen(golden_dir, run):
    arrays = load(golden_dir, "peers_performer.npz")
    module = performer(True, torch.float32)
    module.eval_proj.copy_(torch.tensor(arrays["fast/projection_matrix"]).expand(4, -1, -1))
    q, k, v = (torch.tensor(arrays[f"fast/{run}/{name}"]) for name in "qkv")
    out = module.attend(q, k, v, None)
    largest = (k @ module.eval_proj.mT).amax(-1)
    seen = largest.cummax(-1).values == largest.amax(-1, keepdim=True)
    assert seen.any() and not seen.all()
    want = torch.tensor(arrays[f"fast/{run}/causal/output"])
    assert relative(out[seen], want[seen]) < 1e-5
    assert relative(out[~seen], want[~seen]) > 1e-2


def slow_performer(module, q, k, v):
    """The definition, position by position, in float64."""
    q, k, v, omega = (x.double() for x in (q, k, v, module.eval_proj))
    dim, features = omega.shape[2], omega.shape[1]

    def exponents(x):
        return (x * dim**-0.25) @ omega.mT, x.square().sum(-1, keepdim=True) / (2 * dim**0.5)

    a, r = exponents(q)
    phi_q = (torch.exp(a - r - a.amax(-1, keepdim=True)) + 1e-4) / features**0.5
    a, r = exponents(k)
    out = torch.empty_like(v)
    for t in range(q.shape[2]):
        seen = a[:, :, : t + 1]
        phi_k = torch.exp(seen - r[:, :, : t + 1] - seen.amax((-1, -2), keepdim=True)) + 1e-4
        phi_k = phi_k / features**0.5
        weights = torch.einsum("bhm,bhsm->bhs", phi_q[:, :, t], phi_k)
        total = (phi_q[:, :, t] * (phi_k.sum(2) + 1e-6)).sum(-1, keepdim=True)
        out[:, :, t] = torch.einsum("bhs,bhsd->bhd", weights, v[:, :, : t + 1]) / total
    return out


def keys_with_a_jump(length=200, size=40.0, dtype=torch.float64):
    """Random q, k and v; the key at 3/4 of the length is `size` times as large as the others."""
    q, k, v = torch.randn(3, 2, 4, length, 8, dtype=dtype)
    k[:, :, 3 * length // 4] *= size
    return q, k, v


@pytest.mark.parametrize("size", [1.0, 40.0])
def test_performer_running_maximum(size):
    module = performer()
    q, k, v = keys_with_a_jump(size=size)
    want = slow_performer(module, q, k, v)
    torch.testing.assert_close(module.attend(q, k, v, None), want, rtol=1e-10, atol=1e-10)
    single = performer(dtype=torch.float32)
    single.load_state_dict(module.state_dict())
    out = single.attend(q.float(), k.float(), v.float(), None)
    reference = slow_performer(single, q.float(), k.float(), v.float())
    torch.testing.assert_close(out.double(), reference, rtol=1e-4, atol=1e-4)


def test_performer_with_a_huge_later_key_needs_the_chunks(monkeypatch):
    """One reference for all keys, as the kernel path has it, would lose the earlier ones."""
    module = performer(dtype=torch.float32)
    q, k, v = keys_with_a_jump(dtype=torch.float32)
    out = module.attend(q, k, v, None)
    monkeypatch.setattr(performer_module, "LARGEST_RISE", 1e9)
    assert not torch.allclose(module.attend(q, k, v, None), out, atol=1e-2)


def test_performer_paths_agree(monkeypatch):
    module = performer()
    q, k, v = (x.requires_grad_() for x in keys_with_a_jump(size=2.0))
    results = []
    for rise in (60.0, -1.0):
        monkeypatch.setattr(performer_module, "LARGEST_RISE", rise)
        out = module.attend(q, k, v, None)
        results.append((out, *torch.autograd.grad(out.sin().sum(), (q, k, v))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_performer_decodes_past_a_jump():
    module = performer()
    q, k, v = keys_with_a_jump(length=80)
    full, state = module.attend(q, k, v, None), module.first_state(q)
    out = []
    for piece in (slice(0, 50), slice(50, 51), slice(51, 70), *(slice(i, i + 1) for i in range(70, 80))):
        new = NewTokens(None, torch.tensor([piece.start]), piece.stop - piece.start)
        step, state = module.decode(q[:, :, piece], k[:, :, piece], v[:, :, piece], new, state)
        out.append(step)
    torch.testing.assert_close(torch.cat(out, 2), full, rtol=1e-9, atol=1e-9)


def test_performer_approaches_softmax():
    """With many features and small inputs, where epsilon and the variance count little."""
    module = performer(False, features=4096)
    q, k, v = torch.randn(3, 1, 4, 30, 8, dtype=torch.float64) * 0.25
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert (module.attend(q, k, v, None) - want).norm() / want.norm() < 0.015


def test_orthogonal_features():
    rows = orthogonal_features(3, 20, 8, torch.Generator().manual_seed(0))
    assert rows.shape == (3, 20, 8)
    for block in (rows[:, :8], rows[:, 8:16], rows[:, 16:]):
        products = block @ block.mT
        lengths = products.diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(products, torch.diag_embed(lengths), atol=1e-4, rtol=0)
    many = orthogonal_features(1, 8000, 8, torch.Generator().manual_seed(0))
    assert 7.8 < many.square().sum(-1).mean() < 8.2
    assert (many.mean(1).abs() < 0.05).all()


def test_performer_redraws_are_the_same_in_every_process_and_after_a_restart():
    first, second = performer(redraw=10), performer(redraw=10)
    second.load_state_dict(first.state_dict())
    start = first.eval_proj.clone()
    for update in range(25):
        first.set_num_updates(update)
        second.set_num_updates(update)
        assert torch.equal(first.eval_proj, second.eval_proj)
        assert torch.equal(first.eval_proj, start) == (update < 10)
    resumed = performer(redraw=10)
    resumed.load_state_dict(first.state_dict())
    for module in (first, resumed):
        module.set_num_updates(25)
    assert torch.equal(first.eval_proj, resumed.eval_proj)
    for module in (first, resumed):
        module.set_num_updates(30)
    assert torch.equal(first.eval_proj, resumed.eval_proj)
    straight = performer(redraw=10)
    straight.load_state_dict({**first.state_dict(), "redraws": torch.tensor(0)})
    straight.set_num_updates(39)
    assert torch.equal(first.eval_proj, straight.eval_proj)


def test_performer_without_redraws():
    module = performer(redraw=0)
    start = module.eval_proj.clone()
    module.set_num_updates(10**6)
    assert torch.equal(module.eval_proj, start)


def test_performer_evaluates_what_it_trains():
    """The paper's form draws new features at each training step."""
    x = torch.randn(20, 2, 32, dtype=torch.float64)
    module, paper = performer(), performer(paper=True)
    assert torch.equal(module.train()(x)[0], module.eval()(x)[0])
    assert not torch.allclose(paper.train()(x)[0], paper(x)[0])
    assert not torch.allclose(paper(x)[0], paper.eval()(x)[0])
    assert torch.equal(paper(x)[0], paper(x)[0])


@kinds
def test_performer_of_the_paper_ignores_padding(kind):
    module = performer(kind == "causal", paper=True)
    x = torch.randn(20, 2, 32, dtype=torch.float64)
    padding = torch.arange(20) >= torch.tensor([[20], [7]])
    out, _ = module(x, key_padding_mask=padding)
    torch.testing.assert_close(out[:7, 1:], module(x[:7, 1:])[0], rtol=1e-10, atol=1e-10)
    everything = torch.ones(2, 20, dtype=torch.bool)
    assert torch.isfinite(module(x, key_padding_mask=everything)[0]).all()


def test_performer_of_the_paper_does_not_decode():
    with pytest.raises(UserError, match="--performer-paper.* cannot decode step by step"):
        performer(paper=True)(torch.randn(1, 1, 32, dtype=torch.float64), incremental_state={})


@runs
@pytest.mark.parametrize("kind", ["full_M512", "causal_M512", "full", "causal"])
def test_cosformer(golden_dir, run, kind):
    arrays = load(golden_dir, "peers_cosformer.npz")
    length = 512 if kind.endswith("M512") else int(run[1:])
    module = build_attention("cosformer", 32, 4, causal=kind.startswith("causal"), length=length)
    module.load_state_dict(state(arrays))
    check(module, arrays, f"{run}/{kind}/")


def test_cosformer_weights():
    """The definition, in float64, for few tokens."""
    module = build_attention("cosformer", 12, 2, causal=False, length=20).double()
    q, k, v = torch.randn(3, 1, 2, 20, 6, dtype=torch.float64)
    place = torch.arange(20)
    cosine = torch.cos(torch.pi / 2 * (place[:, None] - place) / 20)
    weights = (q.relu() @ k.relu().mT) * cosine
    want = weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-4)
    torch.testing.assert_close(module.attend(q, k, v, None), want)


def test_the_smallest_denominator_of_cosformer():
    """A token sees itself, with the weight 1e-6 * cos 0, which is divided by 1e-4."""
    module = build_attention("cosformer", 2, 2, causal=True, length=20).double()
    small, v = torch.full((1, 2, 1, 1), 1e-3, dtype=torch.float64), torch.ones(1, 2, 1, 1).double()
    torch.testing.assert_close(module.attend(small, small, v, None), 0.01 * v)


def test_cosformer_takes_its_length_from_the_model():
    module = build_attention("cosformer", 12, 2, causal=True, max_positions=30)
    assert module.length == 30
    assert build_attention("cosformer", 12, 2, causal=True, max_positions=30, length=40).length == 40


def test_cosformer_refuses_longer_sequences():
    message = "21 tokens is longer than the 20 of cosformer attention; .* larger --cosformer-length"
    for causal in (True, False):
        module = build_attention("cosformer", 12, 2, causal=causal, length=20)
        module(torch.randn(20, 2, 12))
        with pytest.raises(UserError, match=message):
            module(torch.randn(21, 2, 12))
        # Padding does not count.
        padding = torch.arange(25) >= torch.tensor([[20], [3]])
        assert torch.isfinite(module(torch.randn(25, 2, 12), key_padding_mask=padding)[0]).all()
    module, state = build_attention("cosformer", 12, 2, causal=True, length=20), {}
    padding = torch.arange(18) >= torch.tensor([[18], [3]])
    module(torch.randn(18, 2, 12), key_padding_mask=padding, incremental_state=state)
    for _ in range(2):
        module(torch.randn(1, 2, 12), incremental_state=state)
    with pytest.raises(UserError, match=message):
        module(torch.randn(1, 2, 12), incremental_state=state)


def test_cosformer_without_output_map():
    with_map, without = (
        build_attention("cosformer", 12, 2, causal=True, length=20, no_output_map=flag)
        for flag in (False, True)
    )
    difference = sum(p.numel() for p in with_map.parameters()) - sum(p.numel() for p in without.parameters())
    assert difference == 12 * 12 + 12
    state = {key: value for key, value in with_map.state_dict().items() if not key.startswith("out_proj")}
    without.load_state_dict(state)
    x = torch.randn(9, 2, 12)
    torch.testing.assert_close(with_map.out_proj(without(x)[0]), with_map(x)[0])
