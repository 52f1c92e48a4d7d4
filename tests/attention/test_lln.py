"""LLN and LLN+Diag against their formulas, at the ends of the number range, and their statistics."""

import math
from functools import partial

import pytest
import torch
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from user_dir.attention import build_attention, lln_attention
from user_dir.attention.parts import exponential
from user_dir.attention.parts.exponential import (
    causal_exponential_attention,
    exponential_attention_step,
    first_sums,
)
from user_dir.attention.parts.moment_matching import AUTHORS_CONSTANTS
from user_dir.errors import UserError

both = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def plain(q, k, v, *, alpha, beta, causal, key_padding_mask=None):
    """The formula, quadratic, each weight from the logarithm of its sum; zero where no key is visible."""
    logs = torch.logsumexp((alpha * q).unsqueeze(3) + (beta * k).unsqueeze(2), -1)
    hidden = torch.zeros(q.shape[0], 1, *logs.shape[2:], dtype=torch.bool)
    if causal:
        hidden |= torch.ones_like(hidden).triu(1)
    if key_padding_mask is not None:
        hidden |= key_padding_mask[:, None, None, :]
    logs = logs.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(logs.masked_fill(hidden.all(-1, keepdim=True), 0.0), -1)
    return weights.masked_fill(hidden, 0.0) @ v


def inputs(length, batch=2, heads=2, dim=5, width=3, dtype=torch.float64):
    return [torch.randn(batch, heads, length, n).to(dtype).requires_grad_() for n in (dim, dim, width)]


def with_gradients(function, tensors, **kwargs):
    """The output and the gradients of its product with a fixed random cotangent."""
    out = function(*tensors, **kwargs)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    return out, *torch.autograd.grad(out, tensors, cotangent)


@both
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 64, 65, 150, 515], ids="N{}".format)
def test_equals_the_formula_with_gradients(length, causal, masked):
    tensors = inputs(length)
    mask = (torch.rand(2, length) < 0.4) if masked else None
    scales = {"alpha": 2.1, "beta": 1.7, "causal": causal, "key_padding_mask": mask}
    got = with_gradients(lln_attention, tensors, **scales)
    for a, b in zip(got, with_gradients(plain, tensors, **scales), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("segment", [64, 256, 1024])
def test_segments_of_any_length_give_the_same(segment, monkeypatch):
    monkeypatch.setattr(exponential, "segment_length", lambda q: segment)
    tensors, scales = inputs(330), {"alpha": 2.1, "beta": 1.7, "causal": True}
    got = with_gradients(lln_attention, tensors, **scales)
    for a, b in zip(got, with_gradients(plain, tensors, **scales), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("batch", "length"), [(1, 16384), (8, 2048), (1000, 512), (0, 16384)])
def test_segments_fill_a_gpu(batch, length):
    assert exponential.segment_length(torch.empty(batch, 8, 1, 64, device="meta")) == length


@both
@pytest.mark.parametrize("length", [1, 6, 70], ids="N{}".format)
def test_gradcheck(length, causal):
    mask = torch.arange(length).expand(2, -1) >= torch.tensor([[length], [(length + 1) // 2]])

    def function(q, k, v):
        return lln_attention(q, k, v, alpha=1.5, beta=2.0, causal=causal, key_padding_mask=mask)

    tensors = inputs(length, heads=1, dim=2, width=2)
    assert torch.autograd.gradcheck(function, tensors, fast_mode=length > 9)
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)


def test_pieces_and_single_steps_give_the_whole_with_gradients():
    tensors = inputs(140)

    def in_pieces(q, k, v):
        state, outs = first_sums(k, v), []
        for part in zip(*(x.split([70, 1, 1, 68], 2) for x in (q, k, v)), strict=True):
            attention = exponential_attention_step if part[0].shape[2] == 1 else causal_exponential_attention
            out, state = attention(*part, 2.0, 1.5, None, state)
            outs.append(out)
        return torch.cat(outs, 2)

    expected = with_gradients(plain, tensors, alpha=2.0, beta=1.5, causal=True)
    for a, b in zip(with_gradients(in_pieces, tensors), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@dtypes
@pytest.mark.parametrize("value", [100.0, -100.0, 3e4])
@pytest.mark.parametrize("place", [0, 2, 77, 130, 149])
def test_one_extreme_key_leaves_earlier_outputs_alone(value, place, dtype):
    q, k, v = (x.detach() for x in inputs(150, dim=8, width=8, dtype=dtype))
    before = lln_attention(q, k, v, alpha=2.1, beta=2.1, causal=True)
    for channels in (slice(None), slice(3, 4)):
        changed = k.clone()
        changed[:, :, place, channels] = value
        tensors = [x.clone().requires_grad_() for x in (q, changed, v)]
        out, *gradients = with_gradients(lln_attention, tensors, alpha=2.1, beta=2.1, causal=True)
        torch.testing.assert_close(out[:, :, :place], before[:, :, :place], rtol=0, atol=1e-4)
        assert all(torch.isfinite(x).all() for x in (out, *gradients))


@both
@dtypes
@pytest.mark.parametrize("value", [100.0, -100.0, 3e4])
def test_extreme_keys_and_queries_follow_the_formula(value, dtype, causal):
    tensors = [x.detach() for x in inputs(100, dim=8, width=8, dtype=dtype)]
    tensors[1][:, :, 40, 2] = value
    tensors[1][:, :, 70] = -value
    tensors[0][:, :, 90] = value
    tensors = [x.requires_grad_() for x in tensors]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    scales = {"alpha": 2.0, "beta": 2.0, "causal": causal}
    expected = with_gradients(plain, exact, **scales)
    for got, want in zip(with_gradients(lln_attention, tensors, **scales), expected, strict=True):
        # A rounded exponent is a relative error of the weight: exponents are up to 4e4 here.
        tolerance = 2e-2 if dtype != torch.float32 or value > 1000 else 2e-4
        assert torch.isfinite(got).all()
        assert (got.double() - want).norm() <= tolerance * want.norm() + 1e-4


@both
@dtypes
@pytest.mark.parametrize("kind", ["tiny", "equal", "constant"])
def test_keys_without_contrast_attend_evenly(kind, dtype, causal):
    q, k, v = (x.detach() for x in inputs(90, dtype=dtype))
    k = {"tiny": k * 1e-6, "equal": k[:, :, :1].expand_as(k), "constant": torch.full_like(k, 60.0)}[kind]
    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    out, *gradients = with_gradients(lln_attention, tensors, alpha=3.0, beta=3.0, causal=causal)
    assert all(torch.isfinite(x).all() for x in gradients)
    mean = v.double().cumsum(2) / torch.arange(1, 91)[:, None] if causal else v.double().mean(2, keepdim=True)
    half = dtype != torch.float32
    torch.testing.assert_close(out.double(), mean.expand_as(out), rtol=1e-2 if half else 1e-4, atol=4e-3)


@both
@pytest.mark.parametrize("real", [[], [0], [6], [89]], ids=str)
def test_one_real_token_in_a_row_of_pads(real, causal):
    tensors = inputs(90, batch=1, dtype=torch.float32)
    mask = torch.ones(1, 90, dtype=torch.bool)
    mask[:, real] = False
    out, *gradients = with_gradients(
        lln_attention, tensors, alpha=2.0, beta=2.0, causal=causal, key_padding_mask=mask
    )
    assert all(torch.isfinite(x).all() for x in gradients)
    sees = real[0] if causal and real else 0
    if real:
        torch.testing.assert_close(out[:, :, sees:], tensors[2][:, :, real].expand_as(out[:, :, sees:]))
    assert (out[:, :, : sees if real else 90] == 0).all()


@both
def test_autocast_does_not_round_the_sums(causal):
    tensors = inputs(90, dtype=torch.float32)
    scales = {"alpha": 2.0, "beta": 2.0, "causal": causal}
    expected = lln_attention(*tensors, **scales)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(lln_attention(*tensors, **scales), expected)


def test_a_backward_pass_within_autocast_does_not_round_the_sums_either():
    """The causal form has its own derivative; PyTorch's products would round the sums."""
    tensors = [x.requires_grad_() for x in inputs(90, dtype=torch.float32)]
    out = lln_attention(*tensors, alpha=2.0, beta=2.0, causal=True).sum()
    expected = torch.autograd.grad(out, tensors, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(out, tensors)
    assert all(map(torch.equal, found, expected))


def test_shapes_that_do_not_fit():
    q, k, v = inputs(4)
    with pytest.raises(ValueError, match=r"does not fit q: q \(2, 2, 4, 5\), k \(2, 2, 3, 5\)"):
        lln_attention(q, k[:, :, 1:], v, alpha=1.0, beta=1.0, causal=True)
    with pytest.raises(ValueError, match=r"padding_mask has .* \(2, 3\); expected .* \(2, 4\)"):
        mask = torch.zeros(2, 3, dtype=torch.bool)
        lln_attention(q, k, v, alpha=1.0, beta=1.0, causal=True, key_padding_mask=mask)
    with pytest.raises(ValueError, match=r"beta has shape \(5,\); expected one element"):
        lln_attention(q, k, v, alpha=1.0, beta=torch.ones(5), causal=False)


@both
def test_no_gradient_goes_to_the_exponents(causal):
    q, k, v = inputs(4)
    alpha = torch.tensor(1.5, requires_grad=True)
    lln_attention(q.requires_grad_(), k, v, alpha=alpha, beta=2.0, causal=causal).sum().backward()
    assert alpha.grad is None and q.grad is not None


def projections(module, x):
    return [module.heads(f(x)).detach() for f in (module.q_proj, module.k_proj, module.v_proj)]


def through(module, heads):
    """`(B, H, N, d)` through the output map of `module`."""
    return module.out_proj(heads.permute(2, 0, 1, 3).flatten(2))


@both
def test_batch_statistics_are_those_of_the_authors(causal):
    module = build_attention("lln", 128, 2, causal=causal, statistics="batch").double().eval()
    x = torch.randn(30, 2, 128, dtype=torch.float64)
    q, k, v = projections(module, x)
    a, b = 0.14855178144710912, -0.35487039130661086
    s = ((q.std() ** 2 * k.std() ** 2 - b) / (2 * a)).sqrt()
    phi_q, phi_k = torch.exp(s / q.std() * q), torch.exp(s / k.std() * k)
    weights = phi_q @ phi_k.mT
    weights = weights.tril() if causal else weights
    expected = through(module, weights @ v / weights.sum(-1, keepdim=True))
    torch.testing.assert_close(module(x)[0], expected)


@pytest.mark.parametrize("combination", ["average", "learnable_scale", "learnable_ratio"])
def test_how_lln_and_diag_are_combined(combination):
    """By hand, and the gradients of r and p, for 3 tokens of one row."""
    module = build_attention("lln_diag", 4, 2, causal=True, combination=combination)
    lln, diag = torch.full((1, 2, 3, 2), 6.0), torch.full((1, 2, 3, 2), 2.0)
    out = module._combined(lln, diag)
    assert out.unique().tolist() == [4.0]
    if combination != "average":
        out.sum().backward()
        assert module.r.grad.unique().tolist() == [18.0 if combination == "learnable_scale" else 12.0]
    if combination == "learnable_scale":
        assert module.p.grad.unique().tolist() == [6.0]


@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_padding_counts_for_running_statistics_only_where_real(statistics):
    module = build_attention("lln", 12, 2, causal=False, statistics=statistics)
    x = torch.randn(20, 3, 12)
    mask = torch.arange(20).expand(3, -1) >= torch.tensor([[20], [7], [1]])
    module(x, key_padding_mask=mask)
    q, k, _ = projections(module, x)
    real = mask[:, None].expand(3, 2, 20) if statistics == "running" else torch.zeros(3, 2, 20).bool()
    expected = torch.stack([q[~real].std(), k[~real].std()])
    torch.testing.assert_close(module.scale.sigma, expected)


def test_running_average_of_the_batches_is_what_evaluation_uses():
    module = build_attention("lln", 12, 2, causal=True)
    torch.testing.assert_close(module.scale.sigma, torch.ones(2))
    batches = [torch.randn(15, 2, 12) * size for size in torch.linspace(0.5, 2, 14).tolist()]
    expected = torch.zeros(2)
    for number, x in enumerate(batches):
        q, k, _ = projections(module, x)
        weight = max(0.1, 1 / (number + 1))
        expected = (1 - weight) * expected + weight * torch.stack([q.std(), k.std()])
        module(x)
    torch.testing.assert_close(module.scale.sigma, expected)
    assert module.scale.batches == 14
    module.eval()
    q, k, v = projections(module, batches[0])
    alpha, beta = module.scale.average()
    torch.testing.assert_close(alpha * module.scale.sigma[0], beta * module.scale.sigma[1])
    out = plain(q, k, v, alpha=alpha, beta=beta, causal=True)
    torch.testing.assert_close(module(batches[0])[0], through(module, out), rtol=1e-4, atol=1e-5)
    assert module.scale.batches == 14


def test_a_training_output_uses_its_own_batch():
    module = build_attention("lln", 12, 2, causal=False)
    x = torch.randn(9, 2, 12)
    first = module(x)[0]
    module(5 * x)
    torch.testing.assert_close(module(x)[0], first)


@pytest.mark.parametrize("kind", ["pads", "inf", "constant"])
def test_unusable_batches_do_not_enter_the_average(kind):
    module = build_attention("lln", 12, 2, causal=False)
    module(torch.randn(9, 2, 12))
    before = module.scale.sigma.clone()
    x = torch.zeros(9, 2, 12) if kind == "constant" else torch.randn(9, 2, 12)
    if kind == "constant":
        torch.nn.init.zeros_(module.q_proj.bias)
    if kind == "inf":
        x[3] = torch.inf
    mask = torch.ones(2, 9, dtype=torch.bool) if kind == "pads" else None
    out, _ = module(x, key_padding_mask=mask)
    assert kind == "inf" or torch.isfinite(out).all()
    assert torch.equal(module.scale.sigma, before) and module.scale.batches == 1


@pytest.mark.parametrize("way", ["fairseq", "reentrant", "torch"])
def test_activation_checkpointing_counts_a_batch_once(way):
    plain_module, module = (build_attention("lln", 12, 2, causal=True) for _ in range(2))
    module.load_state_dict(plain_module.state_dict())
    if way == "fairseq":
        run = checkpoint_wrapper(module)
    else:
        run = partial(checkpoint, module, use_reentrant=way == "reentrant")
    for _ in range(3):
        x = torch.randn(9, 2, 12)
        copies = [x.clone().requires_grad_() for _ in range(2)]
        for each, copy in zip((plain_module, run), copies, strict=True):
            each(copy)[0].square().sum().backward()
        torch.testing.assert_close(copies[0].grad, copies[1].grad)
    assert module.scale.batches == plain_module.scale.batches == 3
    torch.testing.assert_close(module.scale.sigma, plain_module.scale.sigma)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_average_stays_in_float32(dtype):
    module = build_attention("lln", 12, 2, causal=True)
    x = torch.randn(15, 2, 12)
    module(x)
    sigma = module.scale.sigma.clone()
    module.to(dtype)
    assert module.scale.sigma.dtype == torch.float32 and torch.equal(module.scale.sigma, sigma)
    x = (1.01 * x).to(dtype)
    for _ in range(60):  # steps below the resolution of bfloat16
        module(x)
    assert module.scale.sigma.dtype == torch.float32
    expected = torch.stack([y.float().std() for y in projections(module, x)[:2]])
    torch.testing.assert_close(module.scale.sigma, expected, rtol=5e-4, atol=0)
    again = build_attention("lln", 12, 2, causal=True).to(dtype)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.scale.sigma, module.scale.sigma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["lln", "lln_diag"])
def test_modules_stay_finite_with_an_extreme_token(name, dtype):
    for causal in (True, False):
        module = build_attention(name, 16, 2, causal=causal).to(dtype)
        for mode in (module.train, module.eval):
            mode()
            x = torch.randn(70, 1, 16)
            x[40] = 100.0
            x = x.to(dtype).requires_grad_()
            out, _ = module(x)
            out.float().sum().backward()
            assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", ["lln", "lln_diag"])
def test_a_text_is_decoded_with_the_average_from_which_it_began(name):
    module = build_attention(name, 12, 2, causal=True)
    x = 2 * torch.randn(15, 2, 12)
    module(x)
    expected, state = module.eval()(x)[0], {}
    pieces = []
    for piece in x.split([1, 1, 13]):
        pieces.append(module(piece, incremental_state=state)[0])
        module.scale.sigma.mul_(1.5)
    torch.testing.assert_close(torch.cat(pieces), expected)


def test_a_segment_in_training_takes_its_own_statistics():
    module, state = build_attention("lln", 12, 2, causal=True), {}
    x = 2 * torch.randn(15, 2, 12)
    torch.testing.assert_close(module(x, incremental_state=state)[0], module(x)[0])
    module(x, incremental_state=state)
    assert module.scale.batches == 3


def test_batch_statistics_cannot_decode():
    module = build_attention("lln", 12, 2, causal=True, statistics="batch")
    with pytest.raises(UserError, match="cannot decode token by token.*with statistics 'running'"):
        module(torch.randn(1, 2, 12), incremental_state={})


def test_constants_of_the_moment_matching():
    def constants(dim, **options):
        scale = build_attention("lln", dim, 1, causal=True, **options).scale
        return scale.a, scale.b

    assert constants(64) == AUTHORS_CONSTANTS
    assert constants(64, a=0.2) == (0.2, 0.0)
    assert constants(16, a=0.2, b=-0.3) == (0.2, -0.3)
    # Narrow heads concentrate more for the same exponents.
    assert constants(16)[0] > 0.19 > constants(64)[0]


def blocks_plain(q, k, v, size, causal):
    outs = []
    for a, b, c in zip(*(x.split(size, 2) for x in (q, k, v)), strict=True):
        scores = a @ b.mT / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).bool().triu(1), -torch.inf)
        outs.append(torch.softmax(scores, -1) @ c)
    return torch.cat(outs, 2)


@both
@pytest.mark.parametrize("size", [0, 5], ids="C{}".format)
@pytest.mark.parametrize("combination", ["average", "learnable_scale", "learnable_ratio"])
def test_lln_diag_equals_its_formula(combination, size, causal):
    module = build_attention(
        "lln_diag", 12, 2, causal=causal, combination=combination, block_size=size
    ).double()
    r = p = torch.tensor(0.5, dtype=torch.float64)
    if combination != "average":
        assert module.r.shape == (1, 2, 1, 6) and (module.r == 0.5).all()
        r = torch.nn.init.uniform_(module.r)
    if combination == "learnable_scale":
        assert module.p.shape == (1, 2, 1, 6) and (module.p == 0.5).all()
        p = torch.nn.init.uniform_(module.p)
    elif combination == "learnable_ratio":
        p = 1 - r
    module.eval()
    x = torch.randn(17, 2, 12, dtype=torch.float64)
    q, k, v = projections(module, x)
    alpha, beta = module.scale.average()
    lln = plain(q, k, v, alpha=alpha, beta=beta, causal=causal)
    diag = blocks_plain(q, k, v, size or 6, causal)
    torch.testing.assert_close(module(x)[0], through(module, r * lln + p * diag))
