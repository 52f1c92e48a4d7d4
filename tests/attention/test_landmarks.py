"""Nystromformer, Skyformer and Kernelized: public arrays, the formulas written slowly, and the samples."""

import copy

import pytest
import torch

from tests.helpers.golden import check_attend, load, relative
from user_dir.attention import build_attention
from user_dir.attention.parts.landmarks import iterative_inverse, segment_means

F64 = {"dtype": torch.float64}


def build(name, heads=2, **options):
    return build_attention(name, 12, heads, causal=False, max_positions=256, **options).double().eval()


@pytest.mark.parametrize("length", [150, 128])
@pytest.mark.parametrize("conv", ["", "_conv"], ids=["plain", "conv"])
def test_nystromformer_equals_public_code(golden_dir, length, conv):
    arrays = load(golden_dir, "peers_nystrom.npz")
    options = {"landmarks": {150: 10, 128: 16}[length]}
    if conv:
        options["conv_width"] = 5
    module = build_attention("nystromformer", 32, 4, causal=False, **options)
    if conv:
        kernel = torch.tensor(arrays["conv_kernel"])[:, None, :, None]
        module.load_state_dict({"conv.weight": kernel}, strict=False)
    check_attend(module, arrays, f"L{length}", f"L{length}/per_head_start{conv}")


def six_steps(a):
    z = a.T / max(a.sum(0))
    one = torch.eye(len(a), **F64)
    for _ in range(6):
        z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
    return z


def nystrom(q, k, v, m):
    """One head of one row."""
    n, d = q.shape
    q, k = q / d**0.25, k / d**0.25
    parts = [[t for t in range(n) if t * m // n == j] for j in range(m)]
    q_marks, k_marks = (torch.stack([x[part].mean(0) for part in parts]) for x in (q, k))
    f, a, b = ((x @ y.T).softmax(-1) for x, y in ((q, k_marks), (q_marks, k_marks), (q_marks, k)))
    return f @ six_steps(a) @ b @ v


@pytest.mark.parametrize("length", [7, 8, 20, 63])
def test_nystromformer_equals_its_formula_for_any_length(length):
    module = build("nystromformer", landmarks=7)
    q, k, v = torch.randn(3, 2, 2, length, 6, **F64)
    out = module.attend(q, k, v, None)
    for row in range(2):
        for head in range(2):
            expected = nystrom(q[row, head], k[row, head], v[row, head], 7)
            torch.testing.assert_close(out[row, head], expected, rtol=1e-9, atol=1e-9)


def test_convolution_of_the_values_sees_no_padding():
    module = build("nystromformer", landmarks=4, conv_width=5)
    q, k, v = torch.randn(3, 1, 2, 20, 6, **F64)
    padding = torch.arange(20)[None] >= 15
    without = copy.deepcopy(module)
    without.conv = None
    got = module.attend(q, k, v, padding) - without.attend(q, k, v, padding)
    for head in range(2):
        kernel = module.conv.weight[head, 0, :, 0]
        for t in range(15):
            taps = [kernel[i] * v[0, head, t + i - 2] for i in range(5) if 0 <= t + i - 2 < 15]
            torch.testing.assert_close(got[0, head, t], sum(taps))


def test_rows_shorter_than_the_landmarks_get_the_exact_softmax():
    module, exact = build("nystromformer", landmarks=32), build("softmax")
    exact.load_state_dict(module.state_dict())
    lengths = torch.tensor([60, 31, 32, 5, 1])
    padding = torch.arange(60) >= lengths[:, None]
    x = torch.randn(60, 5, 12, **F64)
    out, expected = module(x, key_padding_mask=padding)[0], exact(x, key_padding_mask=padding)[0]
    for row, length in enumerate(lengths):
        same = torch.allclose(out[:length, row], expected[:length, row], rtol=1e-9, atol=1e-9)
        assert same == (length < 32)
    torch.testing.assert_close(module(x[:31])[0], exact(x[:31])[0])


def test_as_many_landmarks_as_positions_come_near_softmax():
    module, exact = build("nystromformer", landmarks=16), build("softmax")
    exact.load_state_dict(module.state_dict())
    x = torch.randn(16, 3, 12, **F64) * 4
    assert relative(module(x)[0], exact(x)[0].detach()) < 0.05


def test_segment_means_of_ragged_rows():
    lengths = [17, 4, 3, 1]
    x = torch.randn(5, 2, 17, 3)
    means = segment_means(x, torch.tensor([*lengths, 0]), 4)
    assert means.shape == (5, 2, 4, 3) and torch.isfinite(means).all()
    for row, n in enumerate(lengths):
        for j in range(4):
            members = [x[row, :, t] for t in range(n) if t * 4 // n == j]
            expected = torch.stack(members).mean(0) if members else torch.zeros(2, 3)
            torch.testing.assert_close(means[row, :, j], expected)


def test_inverse_of_one_matrix_does_not_depend_on_the_others():
    a = torch.softmax(2 * torch.eye(6, **F64) + torch.randn(5, 6, 6, **F64), -1)
    inverse = iterative_inverse(a)
    torch.testing.assert_close(inverse[2], iterative_inverse(a[2]))
    close = torch.softmax(4 * torch.eye(6, **F64), -1)
    torch.testing.assert_close(iterative_inverse(close), torch.linalg.inv(close), rtol=1e-9, atol=1e-9)


def kappa(a, b):
    """The Gaussian kernel, pair by pair."""
    return torch.stack([torch.stack([(-(x - y).square().sum() / 2).exp() for y in b]) for x in a])


@pytest.mark.parametrize("length", [1, 13])
def test_kernelized_equals_its_formula(length):
    module = build("kernelized")
    q, k, v = torch.randn(3, 2, 2, length, 6, **F64)
    padding = torch.arange(length) >= torch.tensor([[length], [max(1, length - 4)]])
    out = module.attend(q, k, v, padding)
    for row, n in enumerate((~padding).sum(1)):
        for head in range(2):
            a, b = q[row, head] / 6**0.25, k[row, head, :n] / 6**0.25
            expected = kappa(a, b) @ v[row, head, :n]
            torch.testing.assert_close(out[row, head], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 13])
def test_skyformer_equals_its_formula(length):
    module = build("skyformer", landmarks=8)
    q, k, v = torch.randn(3, 2, 2, length, 6, **F64)
    padding = torch.arange(length) >= torch.tensor([[length], [max(1, length - 4)]])
    out = module.attend(q, k, v, padding)
    uniforms = module.sampled.draws.double() / 2**31
    for row, n in enumerate((~padding).sum(1).tolist()):
        rows, columns = (uniforms * n).floor().long()
        for head in range(2):
            a, b = q[row, head] / 6**0.25, k[row, head] / 6**0.25
            samples = torch.cat([a[rows], b[columns]])
            gram = kappa(samples, samples) + 0.1 * torch.eye(8, **F64)
            scale = torch.diag(gram.sum(1) ** -0.5)
            middle = scale @ six_steps(scale @ gram @ scale) @ scale
            expected = kappa(a, samples) @ middle @ kappa(samples, b[:n]) @ v[row, head, :n]
            torch.testing.assert_close(out[row, head], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_kernel_of_large_inputs_keeps_its_range(dtype):
    """No weight exceeds 1, also where rounding of large squares would make it so."""
    module = build("kernelized").to(dtype)
    x = (torch.randn(1, 2, 40, 6) * 100).to(dtype)
    weights = module.attend(x, x, torch.eye(40).expand(1, 2, 40, 40).to(dtype), None)
    assert weights.max() <= 1 and (weights >= 0).all()
    assert torch.allclose(weights.diagonal(dim1=-2, dim2=-1).float(), torch.ones(40), atol=0.02)


def test_half_precision_keeps_the_samples():
    module = build("skyformer", landmarks=8)
    draws = module.sampled.draws.clone()
    assert torch.equal(module.half().sampled.draws, draws)
    positions = module.sampled(torch.tensor([1, 200, 3_000_000]))
    assert positions.shape == (3, 2, 4) and (positions[0] == 0).all()
    assert (positions < torch.tensor([1, 200, 3_000_000]).view(3, 1, 1)).all() and positions[2].max() > 1000
