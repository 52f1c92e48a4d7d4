"""The laws every mechanism obeys: causal, blind to padding, incremental = full, linear cost."""

from itertools import product

import pytest
import torch

from tests.helpers.cases import case
from tests.helpers.counting import kept_bytes, kept_for_backward
from tests.helpers.mechanisms import (
    MECHANISMS,
    WITH_DROPOUT,
    all_forms,
    build,
    causal_mechanisms,
    causal_without,
    forms_of,
    ragged,
)

LENGTHS = (1, 17, 63, 64, 65, 150)  # around the ends of chunks
# All in float64; float32, which changes rounding alone, for the longest.
SIZES = [*((length, torch.float64) for length in LENGTHS), (150, torch.float32)]


def close(a, b, dtype):
    # Some outputs pass an RMSNorm, which magnifies rounding where its input is small.
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@causal_mechanisms
@torch.no_grad()
def test_causal(key):
    for length, dtype in SIZES:
        with case(length, dtype):
            module = build(key, True, dtype)
            x = torch.randn(length, 2, 12, dtype=dtype)
            out, _ = module(x)
            for j in {0, length // 2, length - 1}:
                changed = x.clone()
                changed[j:] = torch.randn_like(changed[j:]) * 3
                close(module(changed)[0][:j], out[:j], dtype)


@all_forms
@torch.no_grad()
def test_padding_changes_nothing(key, causal):
    for length, dtype in SIZES:
        with case(length, dtype):
            module = build(key, causal, dtype)
            sizes, mask = ragged(length, 4)
            x = torch.randn(length, 4, 12, dtype=dtype)
            out, _ = module(x, key_padding_mask=mask)
            assert torch.isfinite(out).all()
            for row, size in enumerate(sizes):
                alone, _ = module(x[:size, row : row + 1])
                close(out[:size, row], alone[:, 0], dtype)


@all_forms
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


@causal_mechanisms
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@torch.no_grad()
def test_incremental_equals_full(key, dtype):
    module = build(key, True, dtype)
    x = torch.randn(150, 3, 12, dtype=dtype)
    state: dict = {}
    steps = torch.cat([module(token, incremental_state=state)[0] for token in x.split(1)])
    for length in LENGTHS:
        close(steps[:length], module(x[:length])[0], dtype)


@causal_mechanisms
@pytest.mark.parametrize("within", ["all", "prompt", "rest"])
@torch.no_grad()
def test_incremental_equals_full_under_autocast(key, within):
    """Far enough for bfloat16's rounding of distances and sums; also on in some steps and off in others."""
    module = build(key, True)
    x = torch.randn(330, 1, 12)
    state: dict = {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        full = module(x)[0].float()
    pieces = []
    for piece in x.split([299, 1, *[1] * 10, 20]):
        part = "prompt" if len(pieces) < 2 else "rest"  # the second enlarges the cache
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=within in ("all", part)):
            pieces.append(module(piece, incremental_state=state)[0].float())
    error = (torch.cat(pieces) - full).norm() / full.norm()
    assert error.isfinite() and (error < 0.02 or not MECHANISMS[key].continuous)


@causal_mechanisms
def test_decoding_continues_in_another_mode(key):
    """A prompt, and perhaps a token, read in one and continued in the other, also with derivatives."""
    modes = (torch.inference_mode, torch.no_grad), (torch.no_grad, torch.enable_grad)
    for read, mode, cut in product(*modes, (5, 6)):
        with case(read.__name__, mode.__name__, f"a prompt of {cut}"):
            module = build(key, True, torch.float64, longest=64)
            x = torch.randn(9, 2, 12, dtype=torch.float64)
            full, state, pieces = module(x)[0], {}, []
            with read():
                pieces += [module(piece, incremental_state=state)[0] for piece in x[:cut].split(5)]
            with mode():
                pieces += [module(piece, incremental_state=state)[0] for piece in x[cut:].split([1, 8 - cut])]
            close(torch.cat([piece.detach() for piece in pieces]), full, torch.float64)
            if mode is torch.enable_grad:
                pieces[-1].sum().backward()


@causal_mechanisms
def test_gradients_of_decoding_are_those_of_the_full_forward(key):
    module = build(key, True, torch.float64)
    x = torch.randn(24, 2, 12, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(x)

    def gradients(out):
        trained = [x, *(p for p in module.parameters() if p.requires_grad)]
        return torch.autograd.grad((out * weights).sum(), trained, allow_unused=True)

    expected = gradients(module(x)[0])
    state: dict = {}
    steps = [module(piece, incremental_state=state)[0] for piece in x.split(1)]
    for got, gradient in zip(gradients(torch.cat(steps)), expected, strict=True):
        close(got, gradient, torch.float64)


@causal_without("reformer")  # the work of reformer-16-3, threefold
@torch.no_grad()
def test_incremental_in_pieces(key):
    module = build(key, True, torch.float64)
    x = torch.randn(150, 2, 12, dtype=torch.float64)
    full, _ = module(x)
    for cuts in ((150,), (70, 1, 79), (1, 64, 85)):
        with case(cuts):
            state: dict = {}
            pieces = [module(piece, incremental_state=state)[0] for piece in x.split(cuts)]
            close(torch.cat(pieces), full, torch.float64)


@causal_mechanisms
@torch.no_grad()
def test_incremental_with_rows_of_different_length(key):
    """Rows with shorter prompts continue from where they are."""
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


@causal_mechanisms
@torch.no_grad()
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


@all_forms
def test_memory_grows_linearly(key, causal):
    """Counted, not timed: numbers kept for the backward pass."""
    module = build(key, causal).train()

    def kept(length):
        x = torch.randn(length, 1, 12, requires_grad=True)
        return kept_for_backward(lambda: module(x)[0].sum().backward())

    growth = kept(4096) / kept(1024)
    mechanism = MECHANISMS[key]
    linear = mechanism.linear_memory and (mechanism.linear_causal_memory or not causal)
    assert (growth <= 4.2) == linear


KEPT = {  # of the full form, if there is one, and the causal
    "softmax": (5, 5),
    "elu": (7, 7),
    "norm-elu": (8, 8),
    "performer": (5, 16),
    "lln": (5, 6),
    "lln_diag": (9, 10),
    "retention": (None, 15),
    "lightning": (None, 21),
    "gated": (None, 13),
}


@pytest.mark.parametrize(
    ("key", "causal", "most"),
    [(key, bool(form), most) for key, forms in KEPT.items() for form, most in enumerate(forms) if most],
)
def test_memory_in_half_precision(key, causal, most):
    """In arrays of the input's size; parameters, blocks and features add at most another half."""
    module = build(key, causal, torch.bfloat16, dim=64).train()
    x = torch.randn(1024, 1, 64, dtype=torch.bfloat16, requires_grad=True)
    outputs = []
    assert kept_bytes(lambda: outputs.append(module(x)[0])) <= (most + 0.6) * x.nbytes


@causal_mechanisms
@torch.no_grad()
def test_decoding_state_is_constant(key):
    module = build(key, True)

    def size(length):
        state: dict = {}
        module(torch.randn(length, 1, 12), incremental_state=state)
        return sum(x.numel() for x in next(iter(state.values())).values() if isinstance(x, torch.Tensor))

    assert (size(300) == size(3)) == MECHANISMS[key].constant_state


@all_forms
@torch.no_grad()
def test_autocast_changes_little(key, causal):
    module, x = build(key, causal), torch.randn(60, 2, 12)
    expected, _ = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = module(x)
    error = (out - expected).norm() / expected.norm()
    assert out.isfinite().all() and (not MECHANISMS[key].continuous or error < 0.1)


@all_forms
def test_saved_and_loaded_it_gives_the_same(key, causal, tmp_path):
    """A module saves its random draws, too."""
    first, second = build(key, causal), build(key, causal)
    x = torch.randn(700, 2, 12)  # more blocks than BigBird sees anyway
    out, _ = first(x)
    assert torch.equal(first(x)[0], out) and not torch.equal(second(x)[0], out)
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    second.load_state_dict({name: weights[name] for name, _ in second.named_parameters()}, strict=False)
    drawn = [name for name, x in second.state_dict().items() if not torch.equal(x, weights[name])]
    assert torch.equal(second(x)[0], out) == (not drawn)
    second.load_state_dict(weights)
    assert torch.equal(second(x)[0], out)


@all_forms
@torch.no_grad()
def test_dropout_acts_on_the_weights_in_training_only(key, causal):
    """For mechanisms that form weights; the others have no dropout."""
    module, dropping = build(key, causal), build(key, causal, dropout=0.5)
    dropping.load_state_dict(module.state_dict())
    x = torch.randn(100, 2, 12)
    assert torch.equal(dropping(x)[0], module(x)[0])
    found = [one.train()(x)[0] for one in (module, module, dropping, dropping)]
    assert torch.equal(*found[:2])
    assert torch.equal(*found[2:]) == (MECHANISMS[key].name not in WITH_DROPOUT)


@forms_of("softmax", "diag", "lln_diag", "bigbird", "longformer", "kernelized", "informer")
@torch.no_grad()
def test_dropout_drops_its_share_of_the_weights(key, causal):
    """A head of a single token has one weight: without it comes out what dropout of everything leaves."""
    weights, outs = build(key, causal).state_dict(), []
    x = torch.randn(1, 2000, 12)
    for p in (0.0, 1.0, 0.3):
        module = build(key, causal, dropout=p).train()
        module.load_state_dict(weights)
        module.out_proj = torch.nn.Identity()
        outs.append(module(x)[0].unflatten(-1, (2, 6)))
    whole, nothing, some = outs
    counted = (whole != nothing).any(-1)  # a ReLU may leave no weight to drop
    dropped = (some == nothing).all(-1)[counted].double().mean().item()
    assert dropped == pytest.approx(0.3, abs=0.05)


@all_forms
def test_empty_batches(key, causal):
    for shape in ((0, 2, 12), (3, 0, 12)):
        assert build(key, causal)(torch.zeros(shape))[0].shape == shape


@causal_mechanisms
@torch.no_grad()
def test_no_new_tokens_leave_the_state_as_it_is(key):
    module, state, other = build(key, True), {}, {}
    x = torch.randn(9, 2, 12)
    module(x[:5], incremental_state=state)
    assert module(x[5:5], incremental_state=state)[0].shape == (0, 2, 12)
    module(x[:5], incremental_state=other)
    pair = (module(x[5:], incremental_state=one)[0] for one in (state, other))
    torch.testing.assert_close(*pair, rtol=0, atol=0)


@all_forms
def test_half_precision_stays_finite_and_near(key, causal):
    for dtype, most in ((torch.bfloat16, 0.1), (torch.float16, 0.02)):
        with case(dtype):
            module = build(key, causal)
            x = torch.randn(150, 2, 12)
            expected, _ = module(x)
            half = build(key, causal).to(dtype)
            half.load_state_dict(module.state_dict())
            x = x.to(dtype).requires_grad_()
            out, _ = half(x)
            assert out.dtype == dtype
            out.float().square().sum().backward()
            assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
            error = (out.float() - expected).norm() / expected.norm()
            # Separate tests of the others compare half precision where tokens see the same.
            assert not MECHANISMS[key].continuous or error < most


# Those that differ in sizes only from others that are compiled, and those of the whole models that
# tests/models/test_compiled.py compiles, one of either feature map.
SAME_CODE = (
    "flash-16",
    "reformer-16-3",
    "reformer-8-5-redraw",
    "longformer-32",
    "transformer_ls-16-2",
    "diag-1",
)
WHOLE_MODELS = ("norm-elu", "diag-relu", "norm-1+elu", "diag-softmax", "lln_diag")
# Another variant of each mechanism is compiled by the default suite, too.
VARIANTS = (
    "norm-none",
    "diag-none-16",
    "retention-8",
    "lightning-second",
    "lln_diag-ratio",
    "bigbird-8-0",
    "nystromformer-conv",
    "linformer-separate",
    "linformer-shared",
)


@forms_of(without=SAME_CODE + WHOLE_MODELS, exhaustive=VARIANTS)
def test_layer_compiles_without_graph_breaks(key, causal):
    torch._dynamo.reset()
    module = build(key, causal).train()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    x = torch.randn(70, 2, 12, requires_grad=True)
    torch.manual_seed(0)  # in training some draw new samples
    out = compiled(x)[0]
    torch.manual_seed(0)
    close(out, module(x)[0], torch.float32)
    out.sum().backward()
    assert torch.isfinite(x.grad).all()


@forms_of(without=("softmax", "performer"))
def test_second_derivatives(key, causal):
    """Along a direction, against differences of the first ones.

    PyTorch refuses those of softmax attention's operator, and Performer takes its maxima for constants.
    """
    module = build(key, causal, torch.float64)
    x, weights, along = torch.randn(3, 9, 2, 12, dtype=torch.float64)

    def gradient(x, **options):
        x = x.detach().requires_grad_()
        return x, torch.autograd.grad((module(x)[0] * weights).sum(), x, **options)[0]

    start, first = gradient(x, create_graph=True)
    (found,) = torch.autograd.grad((first * along).sum(), start)
    step = 1e-5 * along
    expected = (gradient(x + step)[1] - gradient(x - step)[1]) / 2e-5
    torch.testing.assert_close(found, expected, atol=1e-3 * expected.abs().max().item(), rtol=1e-3)
