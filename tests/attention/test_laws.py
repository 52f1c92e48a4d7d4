"""The laws every mechanism obeys: causal, blind to padding, incremental = full, linear cost."""

import pytest
import torch

from user_dir.attention import build_attention

# Every mechanism with every option that changes what it computes, and whether its cost is linear.
MECHANISMS = {
    "softmax": ("softmax", {}, False),
    "elu": ("elu", {}, True),
    "norm-elu": ("norm", {"feature_map": "elu"}, True),
    "norm-1+elu": ("norm", {"feature_map": "1+elu"}, True),
    "norm-none": ("norm", {"positions": "none"}, True),
    "diag-relu": ("diag", {"activation": "relu"}, True),
    "diag-softmax": ("diag", {"activation": "softmax"}, True),
    "diag-none-16": ("diag", {"positions": "none", "block_size": 16}, True),
    "diag-1": ("diag", {"activation": "softmax", "block_size": 1}, True),
}
LENGTHS = [1, 63, 64, 65, 150]
mechanisms = pytest.mark.parametrize("key", MECHANISMS)
lengths = pytest.mark.parametrize("length", LENGTHS, ids="N{}".format)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


def build(key, causal, dtype=torch.float32, dim=12, heads=2):
    name, options, _ = MECHANISMS[key]
    return build_attention(name, dim, heads, causal=causal, **options).to(dtype).eval()


def close(a, b, dtype):
    # Some outputs pass an RMSNorm, which magnifies rounding where its input is small.
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def ragged(length, batch, seed=0):
    """A padding mask `(batch, length)` whose rows end at different places; the first one has none."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, length + 1, (batch,), generator=generator)
    sizes[0] = length
    return sizes, torch.arange(length) >= sizes[:, None]


@mechanisms
@lengths
@dtypes
def test_causal(key, length, dtype):
    module = build(key, True, dtype)
    x = torch.randn(length, 2, 12, dtype=dtype)
    out, _ = module(x)
    for j in {0, length // 2, length - 1}:
        changed = x.clone()
        changed[j:] = torch.randn_like(changed[j:]) * 3
        close(module(changed)[0][:j], out[:j], dtype)


@mechanisms
@lengths
@dtypes
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_padding_changes_nothing(key, length, dtype, causal):
    module = build(key, causal, dtype)
    sizes, mask = ragged(length, 4)
    x = torch.randn(length, 4, 12, dtype=dtype)
    out, _ = module(x, key_padding_mask=mask)
    assert torch.isfinite(out).all()
    for row, size in enumerate(sizes):
        alone, _ = module(x[:size, row : row + 1])
        close(out[:size, row], alone[:, 0], dtype)


@mechanisms
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_padding_contributes_no_gradient(key, causal):
    module = build(key, causal, torch.float64)
    sizes, mask = ragged(90, 3)
    x = torch.randn(90, 3, 12, dtype=torch.float64, requires_grad=True)
    out, _ = module(x, key_padding_mask=mask)
    weights = torch.randn_like(out).masked_fill(mask.t().unsqueeze(-1), 0.0)
    (out * weights).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert (x.grad[mask.t()] == 0).all()
    batched = {name: p.grad.clone() for name, p in module.named_parameters() if p.requires_grad}
    module.zero_grad()
    for row, size in enumerate(sizes):
        alone, _ = module(x[:size, row : row + 1].detach())
        (alone * weights[:size, row : row + 1]).sum().backward()
    for name, gradient in batched.items():
        close(dict(module.named_parameters())[name].grad, gradient, torch.float64)


@mechanisms
@lengths
@dtypes
def test_incremental_equals_full(key, length, dtype):
    module = build(key, True, dtype)
    x = torch.randn(length, 3, 12, dtype=dtype)
    full, _ = module(x)
    state: dict = {}
    steps = [module(x[i : i + 1], incremental_state=state)[0] for i in range(length)]
    close(torch.cat(steps), full, dtype)


@mechanisms
@pytest.mark.parametrize("cuts", [(150,), (70, 1, 79), (1, 64, 85)], ids=str)
def test_incremental_in_pieces(key, cuts):
    module = build(key, True, torch.float64)
    x = torch.randn(150, 2, 12, dtype=torch.float64)
    full, _ = module(x)
    state: dict = {}
    pieces = [module(piece, incremental_state=state)[0] for piece in x.split(cuts)]
    close(torch.cat(pieces), full, torch.float64)


@mechanisms
def test_incremental_with_rows_of_different_length(key):
    """Rows whose prompt is shorter go on from where they are."""
    module = build(key, True, torch.float64)
    sizes, mask = ragged(100, 4)
    x = torch.randn(100, 4, 12, dtype=torch.float64)
    after = torch.randn(40, 4, 12, dtype=torch.float64)
    state: dict = {}
    module(x, key_padding_mask=mask, incremental_state=state)
    out = torch.cat([module(after[i : i + 1], incremental_state=state)[0] for i in range(40)])
    for row, size in enumerate(sizes):
        whole, _ = module(torch.cat([x[:size, row], after[:, row]]).unsqueeze(1))
        close(out[:, row], whole[size:, 0], torch.float64)


@mechanisms
def test_reordering_beams(key):
    module = build(key, True, torch.float64)
    x = torch.randn(80, 4, 12, dtype=torch.float64)
    order = torch.tensor([2, 2, 0, 3, 1])
    state: dict = {}
    for i in range(70):
        module(x[i : i + 1], incremental_state=state)
    module.reorder_incremental_state(state, order)
    rest = [module(x[i : i + 1, order], incremental_state=state)[0] for i in range(70, 80)]
    close(torch.cat(rest), module(x[:, order])[0][70:], torch.float64)


@mechanisms
def test_cost_grows_linearly(key):
    """Counted, not timed: numbers kept for the backward pass, and numbers in the decoding state."""
    _, _, linear = MECHANISMS[key]
    if not linear:
        pytest.skip("softmax attention is quadratic; it is the baseline")
    module = build(key, True).train()

    def kept(length):
        numbers = 0

        def pack(tensor):
            nonlocal numbers
            numbers += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(torch.randn(length, 1, 12, requires_grad=True))[0].sum().backward()
        return numbers

    assert kept(8192) <= 4.2 * kept(2048)

    def state_size(length):
        state: dict = {}
        module(torch.randn(length, 1, 12), incremental_state=state)
        return sum(x.numel() for x in next(iter(state.values())).values())

    with torch.no_grad():
        assert state_size(300) == state_size(3)


@mechanisms
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_half_precision_stays_finite_and_near(key, dtype):
    module = build(key, True)
    x = torch.randn(150, 2, 12)
    expected, _ = module(x)
    half = build(key, True).to(dtype)
    half.load_state_dict(module.state_dict())
    x = x.to(dtype).requires_grad_()
    out, _ = half(x)
    assert out.dtype == dtype
    out.float().square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (0.1 if dtype == torch.bfloat16 else 0.02)


@mechanisms
def test_layer_compiles_without_graph_breaks(key):
    torch._dynamo.reset()
    module = build(key, True).train()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(70, 2, 12, requires_grad=True)
    out = compiled(x)[0]
    close(out, module(x)[0], torch.float32)
    out.sum().backward()
    assert torch.isfinite(x.grad).all()
