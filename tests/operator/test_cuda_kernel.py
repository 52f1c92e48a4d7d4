"""What can be shown of the CUDA kernels without a GPU: a CPU that emulates it (tests/cpp/emulated_device.h),
running the same sources thread by thread, gets the definition's results."""

from itertools import pairwise

import pytest
import torch

from causal_linear_attention import causal_linear_attention_step
from tests.helpers import emulation
from tests.helpers.definition import assert_exact_enough, definition, draw

pytestmark = pytest.mark.exhaustive  # building the emulation takes a minute
H200, SMALL, TURING = (90, 132, 232448), (86, 132, 101376), (75, 40, 65536)
BUSY = (90, 0, 232448)  # any number of heads fills it
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 2, 130, 64, 64), (1, 1, 70, 16, 24), (2, 3, 33, 5, 7), (1, 1, 40, 128, 128)]
SHAPES += [(1, 1, 1, 1, 1), (1, 2, 0, 3, 4), (0, 2, 9, 3, 4), (1, 1, 65, 100, 33), (1, 1, 64, 32, 128)]
SHAPES += [(1, 1, 9, 0, 4), (1, 1, 9, 4, 0)]
WIDE = [(1, 1, 70, 256, 256), (1, 2, 33, 129, 5), (1, 1, 40, 20, 200), (2, 1, 1, 256, 1), (1, 1, 0, 130, 130)]
THREE_SEGMENTS = (1, 2, 1300, 7, 20)  # of each head: six blocks
normalizes = pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))


@pytest.fixture(scope="module")
def library(library_of):
    """The kernels that a device runs."""
    return lambda device: library_of(min(device[0], 80))


def check(library, shape, dtype, normalize, device=H200, state=True, strides="dense", **how):
    """The kernels' error is at most twice the plain formula's error in the same dtype."""
    given = draw(shape, dtype, normalize, state, strides)
    found = emulation.emulate(library(device), *given, normalize, device, **how)
    assert_exact_enough(found, given, normalize, shape)


@normalizes
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "B{}-H{}-N{}-D{}-M{}".format(*s))
def test_shapes(library, shape, dtype, normalize):
    check(library, shape, dtype, normalize)


@normalizes
@dtypes
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_any_order_of_threads(library, order, dtype, normalize):
    """Warps that run far ahead of others, backwards or at random; arrays that begin behind a guard page."""
    check(library, (1, 2, 200, 20, 32), dtype, normalize, order=order, at_end=order % 2 == 0)


@normalizes
@dtypes
@pytest.mark.parametrize(("device", "order"), [(H200, 1), (H200, 6), (BUSY, 3)])
def test_long_heads(library, device, order, dtype, normalize):
    """Cut into segments for a GPU with room, whose blocks then wait for each other, or whole: then the
    backward pass goes from one kept state to the next."""
    check(library, (1, 2, 1300, 9, 20), dtype, normalize, device=device, order=order, at_end=order == 6)


@pytest.mark.parametrize("device", [H200, BUSY], ids=["segments", "whole"])
def test_long_wide_heads(library, device):
    """Their states are further apart."""
    check(library, (1, 1, 1600, 70, 16), torch.bfloat16, True, device=device, order=2)


@normalizes
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("shape", WIDE, ids=lambda s: "B{}-H{}-N{}-D{}-M{}".format(*s))
def test_heads_of_up_to_256_columns(library, shape, dtype, normalize):
    """Their columns are shared out among blocks, of q and k, of v, or of both."""
    check(library, shape, dtype, normalize, order=shape[4] % 7, at_end=shape[4] % 2 == 0)


@normalizes
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize(("device", "order"), [(H200, 6), (BUSY, 3)], ids=["segments", "whole"])
def test_long_heads_of_more_than_128_columns(library, device, order, dtype, normalize):
    check(library, (1, 1, 1100, 130, 9), dtype, normalize, device=device, order=order)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("device", [SMALL, TURING], ids=["8.6", "7.5"])
def test_heads_of_256_columns_on_smaller_gpus(library, device, dtype):
    check(library, (1, 1, 40, 256, 256), dtype, True, device=device, state=False)


def draw_decays(shape):
    """In float64: some of 0, some of -60 and -inf, some that grow. A kernel takes them rounded."""
    decay = torch.rand(shape[:3], dtype=torch.float64).mul(-0.3).exp()
    for value in (1.0, 8e-27, 0.0, 1.3):
        decay[torch.rand(shape[:3]) < 0.05] = value
    return decay.float()


def check_decays(
    library, shape, dtype, normalize, device=H200, decay=None, bounds=None, strides="dense", **how
):
    given = list(draw(shape, dtype, normalize, strides=strides))
    if bounds is not None:
        given[3], given[5] = draw((len(bounds) - 1, shape[1], 1, *shape[3:]), dtype, normalize)[3::2]
    decay = draw_decays(shape) if decay is None else decay
    packed = None if bounds is None else torch.tensor(bounds, dtype=torch.int32)
    found = emulation.emulate(library(device), *given, normalize, device, decay, bounds=packed, **how)
    log_decay = (decay[:, None] if decay.dim() == 1 else decay).expand(shape[:3]).double().log()
    assert_exact_enough(found, given, normalize, shape, bounds, log_decay)


@normalizes
@dtypes
def test_decays(library, dtype, normalize):
    """One per head, or one per position; some hide all earlier positions."""
    check_decays(library, (2, 2, 70, 20, 9), dtype, normalize, decay=torch.tensor([0.9, 0.99]), order=1)
    check_decays(library, (1, 2, 100, 20, 16), dtype, normalize, strides="projected", order=3, at_end=False)


@pytest.mark.parametrize(
    ("device", "dtype", "normalize", "columns"),
    [
        (H200, torch.float32, True, (9, 20)),
        (H200, torch.bfloat16, False, (9, 20)),
        (BUSY, torch.bfloat16, True, (70, 16)),
        (BUSY, torch.float16, False, (9, 20)),
    ],
)
def test_decays_of_long_heads(library, device, dtype, normalize, columns):
    """Cut into segments, each of which has its decay, and whole, from one kept state to the next."""
    check_decays(library, (1, 1, 1100, *columns), dtype, normalize, device, order=2)


@pytest.mark.parametrize(("dtype", "normalize"), [(torch.bfloat16, False), (torch.float32, True)])
def test_decays_of_packed_sequences(library, dtype, normalize):
    bounds = [0, 0, 1, 38, 38, 600, 640]
    check_decays(library, (1, 2, 640, 9, 20), dtype, normalize, bounds=bounds, order=5)


@normalizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_a_decay_of_0_hides_what_is_not_finite(library, dtype, normalize):
    """And nothing else does: it spreads up to there, backwards in the gradients of keys and values."""
    given = list(draw((1, 1, 100, 20, 20), dtype, normalize))
    decay = torch.full((1, 1, 100), 0.9)
    decay[..., (5, 70)] = 0.0
    clean = emulation.emulate(library(H200), *given, normalize, H200, decay)
    for which in range(5):
        spoilt = [x.clone() for x in given]
        rows = (slice(None), slice(None), [2, 40])
        spoilt[which][rows if which != 3 else ...] = torch.nan
        found = emulation.emulate(library(H200), *spoilt, normalize, H200, decay, order=which)
        out, final, grad_q, grad_k, grad_v, _, grad_decay = found
        for x, y in zip(
            (out, grad_q, grad_k, grad_v, grad_decay), (clean[0], *clean[2:5], clean[6]), strict=True
        ):
            assert torch.equal(x[:, :, 70:], y[:, :, 70:])
        assert torch.equal(final, clean[1])
        if which == 3:
            assert torch.equal(out[:, :, 5:], clean[0][:, :, 5:]) and not out[:, :, :5].isfinite().any()
        if which == 2:
            assert not out[0, 0, [2, 3, 4, *range(40, 70)]].isfinite().any()
            assert torch.equal(out[:, :, 5:40], clean[0][:, :, 5:40])
        if which == 4:
            assert not grad_v[0, 0, [0, 1, 2, *range(5, 41)]].isfinite().any()
            assert torch.equal(grad_v[:, :, 3:5], clean[4][:, :, 3:5])


@pytest.mark.parametrize("device", [H200, BUSY], ids=["segments", "whole"])
@pytest.mark.parametrize("bounds", [None, [0, 40, 40, 1100]], ids=["rows", "packed"])
def test_heads_that_share_keys(library, bounds, device):
    """They share states and decays as well, and only the first of them writes the kept states."""
    shape, batch = (1, 2, 1100, 9, 20), 2 if bounds is None else 1
    for dtype, normalize, scale in ((torch.float32, True, 1.0), (torch.bfloat16, False, 0.25)):
        given = list(draw((batch, *shape[1:]), dtype, normalize, strides="projected", group=3))
        if bounds is not None:
            given[3], given[5] = draw((len(bounds) - 1, 2, 1, *shape[3:]), dtype, normalize)[3::2]
        for decay in (None, draw_decays((batch, *shape[1:]))):
            packed = None if bounds is None else torch.tensor(bounds, dtype=torch.int32)
            how = {"bounds": packed, "scale": scale, "order": 3}
            found = emulation.emulate(library(device), *given, normalize, device, decay, **how)
            log_decay = None if decay is None else decay.double().log()
            assert_exact_enough(found, given, normalize, shape, bounds, log_decay, scale)


LENGTHS = [0, 1, 37, 0, 0, 64, 2, 1100, 1, 0]


def check_packed(library, lengths, columns, dtype, normalize, state=True, device=H200, **how):
    """Against the definition, sequence by sequence."""
    bounds = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    q, k, v, _, grad, _ = draw((1, 2, int(bounds[-1]), *columns), dtype, normalize)
    _, _, _, states, _, grad_states = draw((len(lengths), 2, 1, *columns), dtype, normalize, state)
    given = (q, k, v, states, grad, grad_states)
    found = emulation.emulate(library(device), *given, normalize, device, bounds=bounds, **how)
    assert_exact_enough(found, given, normalize, (1, 2, int(bounds[-1]), *columns), bounds.tolist())


@normalizes
@dtypes
def test_packed_sequences(library, dtype, normalize):
    """Empty ones, one position, one longer than the rows between two kept states."""
    check_packed(library, LENGTHS, (9, 20), dtype, normalize, order=3)
    check_packed(library, [5, 70, 1], (64, 64), dtype, normalize, state=False, order=4, at_end=False)


@normalizes
def test_packed_sequences_of_wide_heads(library, normalize):
    check_packed(library, [3, 0, 65, 1], (130, 140), torch.bfloat16, normalize, order=5)


def test_packed_sequences_that_keep_many_states(library):
    """The places of two sequences' states are never the same, wherever they begin."""
    lengths = [511, 513, 1, 1030, 512, 1537]
    check_packed(library, lengths, (4, 3), torch.float32, True, order=7)


@normalizes
def test_a_packed_sequence_has_the_bits_of_one_alone(library, normalize):
    lengths = [40, 600, 9]
    bounds = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    given = draw((1, 2, 649, 9, 20), torch.bfloat16, normalize, state=False)
    given = (*given[:5], torch.randn(3, 2, 9, 20 + normalize))
    packed = emulation.emulate(library(BUSY), *given, normalize, BUSY, bounds=bounds)
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        alone = [None if x is None else x[:, :, begin:end] for x in given[:5]]
        found = emulation.emulate(library(BUSY), *alone, given[5][number : number + 1], normalize, BUSY)
        for which, (x, y) in enumerate(zip(packed, found, strict=True)):
            own = x[number : number + 1] if which in (1, 5) else x[:, :, begin:end]
            assert torch.equal(own, y)


@normalizes
@pytest.mark.parametrize("device", [H200, BUSY], ids=["segments", "whole"])
def test_the_same_bits_in_any_order(library, device, normalize):
    """Threads and blocks run one by one from either end, a few at once, or all at once in wrong order."""
    given = draw(THREE_SEGMENTS, torch.bfloat16, normalize)
    first, *others = (
        emulation.emulate(library(device), *given, normalize, device, order=order)
        for order in (0, 1, 3, 5, -6)
    )
    for other in others:
        assert all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize("order", [-1, -2, -4])
def test_blocks_that_wait_for_later_ones_are_found(library, order):
    """Tickets dealt from the last to the first, to fewer blocks at once than there are segments: the
    emulation says so, as it would if the kernels relied on an order that a GPU does not promise."""
    given = draw(THREE_SEGMENTS, torch.bfloat16, False)
    with pytest.raises(RuntimeError, match="the blocks wait for each other"):
        emulation.emulate(library(H200), *given, False, H200, order=order)


@normalizes
@dtypes
@pytest.mark.parametrize("device", [SMALL, TURING], ids=["8.6", "7.5"])
def test_smaller_gpus(library, device, dtype, normalize):
    check(library, (1, 1, 90, 64, 64), dtype, normalize, device=device, state=False)
    check(library, (1, 1, 50, 100, 128), dtype, normalize, device=device)


@pytest.mark.parametrize(("dtype", "columns"), [(torch.float32, 64), (torch.bfloat16, 128)])
def test_decays_on_the_smallest_gpu(library, dtype, columns):
    """Whose shared memory has least room for them."""
    check_decays(library, (1, 1, 50, columns, columns), dtype, True, TURING)


@dtypes
@pytest.mark.parametrize("strides", ["projected", "sliced"])
def test_strides(library, strides, dtype):
    check(library, (2, 2, 70, 16, 16), dtype, True, strides=strides)


@pytest.mark.parametrize(
    ("columns", "dtype", "normalize"),
    [*((20, x, y) for x in DTYPES for y in (False, True)), (132, torch.bfloat16, True)],
    ids=str,
)
def test_nan_and_inf_stay_where_they_belong(library, normalize, dtype, columns):
    """Against the definition, which masks: what is finite there must be, and the first head is untouched.
    Nor do they get lost on the way to rows further on."""
    at, given = 70, list(draw((1, 3, 100, columns, columns), dtype, normalize))
    clean = emulation.emulate(library(H200), *given, normalize, H200)
    for which in (0, 1, 2, 4):  # q, k, v, gradient of the output
        spoilt = [x.clone() for x in given]
        spoilt[which][0, 1, at, 3], spoilt[which][0, 2, at, 3] = torch.nan, torch.inf
        found = emulation.emulate(library(H200), *spoilt, normalize, H200, order=2 + which)
        for before, after in zip(clean, found, strict=True):
            assert torch.equal(before[0, 0], after[0, 0]), "another head changed"
        out, _, grad_q, grad_k, grad_v, _ = (x[0, 1:] for x in found)
        before = [x[0, 1:] for x in clean]
        if which != 4:
            assert torch.equal(out[:, :at], before[0][:, :at])
            assert not out[:, at:].isfinite().all((1, 2)).any()
        if which in (1, 2):
            assert torch.equal(grad_q[:, :at], before[2][:, :at]), "the gradient of an earlier query"
        if which in (0, 4):
            later = slice(at + 1, None)
            assert torch.equal(grad_k[:, later], before[3][:, later]), "the gradient of a later key"
            assert torch.equal(grad_v[:, later], before[4][:, later]), "the gradient of a later value"
        until, since = slice(at + 1), slice(at, None)
        reached = {0: grad_v[:, until], 1: out[:, since], 2: grad_q[:, since], 4: grad_k[:, until]}[which]
        assert not reached.isfinite().any()


def test_float16_sums_may_leave_its_range(library):
    """States beyond 65,504 and inverse denominators below 6e-8."""
    q, k, v, _, grad, _ = draw((1, 1, 200, 16, 16), torch.float16, False, state=False)
    state = torch.full((1, 1, 16, 16), 3e6)
    given = (q / 1e3, k, v, state, grad, torch.zeros(1, 1, 16, 16))
    truth = definition(*[x.double() for x in given], False)
    found = emulation.emulate(library(H200), *given, False, H200)
    for f, t in zip(found[:2], truth, strict=False):
        assert float((f.double() - t).norm()) <= 2e-3 * float(t.norm())
    q, k, v, _, grad, _ = draw((1, 1, 200, 16, 16), torch.float16, True, state=False)
    state = torch.full((1, 1, 16, 17), 4e6)
    given = (q, k, v, state, grad * 1e4, torch.zeros(1, 1, 16, 17))
    truth = definition(*[x.double() for x in given], True)
    found = emulation.emulate(library(H200), *given, True, H200)
    assert float((found[4].double() - truth[4]).norm()) <= 2e-3 * float(truth[4].norm())


@pytest.mark.parametrize("dirty", [False, True], ids=["finite", "infinite"])
def test_columns_of_float16_states_may_differ(library, dirty):
    """Each keeps its accuracy beside columns of states up to 2^22 times as large, of gradients up to 100
    times, and beside one that is infinite."""
    q, k, _, _, grad, _ = draw((1, 1, 100, 16, 16), torch.float16, False, state=False)
    nothing, v = torch.zeros(1, 1, 16, 16), torch.zeros(1, 1, 100, 16).half()
    state = torch.rand(1, 1, 16, 16).add(0.5) * 2.0 ** torch.linspace(18, -4, 16)
    grad[..., 6] *= 100
    given = (q / 1024, k, v, state, grad, nothing)
    truth = definition(*[x.double() for x in given], False)
    if dirty:
        state[..., 5] = grad[..., 99, 5] = float("inf")
    found = emulation.emulate(library(H200), *given, False, H200)
    for f, t in ((found[0], truth[0]), (found[4], truth[4])):  # outputs and v's gradients
        error = (f.double() - t).norm(dim=-2) / t.norm(dim=-2)
        assert float(torch.cat([error[..., :5], error[..., 6:]], -1).max()) <= 2e-3
        assert f[..., 5].isfinite().any() != dirty


def test_float16_gradients_of_weak_features(library):
    """Each keeps its accuracy, though one scale serves the sums of all warps."""
    q, k, v, _, grad, _ = draw((1, 1, 100, 48, 16), torch.float16, False, state=False)
    q = (q * 2.0 ** torch.linspace(4, -12, 48)).half()
    given = (q, k, v, None, grad, torch.zeros(1, 1, 48, 16))
    truth = definition(*[None if x is None else x.double() for x in given], False)
    found = emulation.emulate(library(H200), *given, False, H200)
    error = (found[3].double() - truth[3]).norm(dim=-2) / truth[3].norm(dim=-2)
    assert float(error.max()) <= 2e-3


@pytest.mark.parametrize(
    ("heads", "length", "fitting", "segments"),
    [
        (396, 65_536, 3, 1),  # the GPU is full
        (400, 65_536, 3, 1),  # four blocks more: less time than to read k and v again
        (160, 8192, 3, 1),  # some multiprocessors have two heads
        (132, 65_536, 1, 1),  # a head each
        (96, 8192, 3, 4),  # a wave of 384 blocks
        (96, 8192, 2, 8),  # three waves of 264, where two would end with half of one
        (64, 8192, 3, 4),
        (32, 8192, 3, 8),
        (8, 500, 3, 1),  # too short
        (8, 4096, 3, 8),
        (1, 1_000_000, 3, 131),
        (8, 4096, 0, 0),  # does not fit
    ],
)
def test_segments_of_few_heads(library, heads, length, fitting, segments):
    """Where that takes less time than whole heads on 132 multiprocessors with this many blocks each.

    Those of 32, 64 and 96 heads and the whole ones of 160 were the fastest on an H100.
    """
    assert library(H200).planned_segments(heads, length, 132, fitting) == segments


def test_too_little_shared_memory_is_said(library):
    given = draw((1, 1, 10, 128, 128), torch.float32, False)
    with pytest.raises(RuntimeError, match="do not fit this GPU's shared memory"):
        emulation.emulate(library(H200), *given, False, (80, 132, 16384))


@pytest.mark.parametrize("order", [0, 1, 2])
@normalizes
@dtypes
def test_step(library, dtype, normalize, order):
    """Any sizes, against the definition in float64: the state is float32, the output rounded once."""
    shapes = [(2, 3, 64, 64), (1, 2, 5, 33), (1, 1, 300, 1), (2, 2, 1, 7), (0, 2, 4, 4), (1, 1, 0, 3)]
    for (batch, heads, dim, width), group in [*((x, 1) for x in shapes), *((x, 3) for x in shapes[:3])]:
        q, k = (torch.rand(batch, x, dim).add(0.1).to(dtype) for x in (heads * group, heads))
        v = torch.randn(batch, heads, width).to(dtype)
        state = torch.rand(batch, heads, dim, width + normalize)
        wide = [x.double() for x in (q, k, v, state)]
        for decay in (None, torch.rand(heads), torch.rand(batch, heads)):
            found = emulation.emulate_step(
                library(H200), q, k, v, state, normalize, decay, order, order % 2 == 0
            )
            log_decay = None if decay is None else decay.double().log()
            truth = causal_linear_attention_step(*wide, log_decay=log_decay, normalize=normalize)
            for f, t in zip(found, truth, strict=True):
                assert f.shape == t.shape
                torch.testing.assert_close(f.double(), t, rtol=torch.finfo(f.dtype).eps, atol=1e-5)
