"""A new token in one call: equal to PyTorch's operators, whatever the sizes, places and layouts."""

import pytest
import torch

from causal_linear_attention import decoding, extension
from user_dir.attention.parts.features import FEATURE_MAPS
from user_dir.modules import LRPE
from user_dir.modules.lrpe import turn_both
from user_dir.modules.norms import _rms_norm

pytestmark = [
    pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded"),
    pytest.mark.usefixtures("without_gradients"),
]
SIZES = [(1, 1, 1), (3, 4, 8), (2, 3, 33), (1, 2, 64), (5, 1, 2), (0, 2, 4)]  # batch, heads, d


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


def tokens(batch, heads, dim):
    """q, k, v with strides of their own, LRPE and its angles."""
    q, k, v = torch.randn(batch, 1, heads, dim, 3).unbind(-1)
    lrpe = LRPE(dim, 0.7).eval()
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), lrpe, lrpe.angles(torch.float32)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", FEATURE_MAPS)
@pytest.mark.parametrize("sizes", SIZES)
def test_norm_step(sizes, name):
    q, k, v, lrpe, angles = tokens(*sizes)
    batch, heads, dim = sizes
    lrpe.scale = 1.0
    positions = torch.tensor([0, 100_000, 3, 17, 64])[:batch]
    state = torch.randn(dim, dim, batch, heads).permute(2, 3, 0, 1)
    turned_q, turned_k = turn_both(
        *map(FEATURE_MAPS[name], (q, k)), lrpe.rotations(positions[:, None, None], q.dtype)
    )
    expected = state + turned_k.mT @ v
    out, found = decoding.norm_step(q, k, v, *angles, positions, state, name == "1+elu")
    close(found, expected)
    close(out, turned_q @ expected)


@pytest.mark.parametrize("softmax", [False, True], ids=["relu", "softmax"])
@pytest.mark.parametrize("sizes", SIZES)
def test_block_step(sizes, softmax):
    q, k, v, lrpe, angles = tokens(*sizes)
    batch, heads, dim = sizes
    size, places = 7, torch.tensor([0, 6, 3, 5, 1])[:batch]
    keys, values = torch.randn(2, batch, heads, size, dim).unbind(0)
    found_keys, found_values = keys.clone(), values.clone()
    turned_q, turned_k = turn_both(q, k, lrpe.rotations(places[:, None, None], q.dtype))
    index = places[:, None, None, None].expand(batch, heads, 1, dim)
    keys, values = keys.scatter(2, index, turned_k), values.scatter(2, index, v)
    hidden = torch.arange(size) > places[:, None, None, None]
    scores = turned_q @ keys.mT
    weights = (
        scores.masked_fill(hidden, -torch.inf).softmax(-1)
        if softmax
        else scores.relu().masked_fill(hidden, 0)
    )
    out = decoding.block_step(q, k, v, *angles, lrpe.scale, places, found_keys, found_values, softmax)
    close(found_keys, keys)
    close(found_values, values)
    close(out, weights @ values)


@pytest.mark.parametrize("shape", [(1,), (7, 33), (200, 3, 64), (0, 5), (1, 1, 128)])
def test_rms_norm(shape):
    x = torch.randn(shape)
    x[:1] = 0.0
    x = x.mT if len(shape) == 3 else x
    close(decoding.rms_norm(x, 1e-8), _rms_norm(x, 1e-8)[0])


def test_opcheck():
    q, k, v, _, angles = tokens(2, 3, 8)
    places, state = torch.tensor([0, 2]), torch.randn(2, 3, 8, 8)
    keys, values = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
    calls = [
        (decoding.norm_step, (q, k, v, *angles, places, state, True)),
        (decoding.block_step, (q, k, v, *angles, 0.5, places, keys, values, True)),
        (decoding.rms_norm, (torch.randn(3, 5), 1e-8)),
    ]
    for operator, arguments in calls:
        assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}


def test_what_would_read_beyond_a_tensor_is_refused():
    q, k, v, _, (direction, theta) = tokens(2, 3, 8)
    places, state, block = torch.tensor([0, 2]), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 4, 8)
    wrong = [
        (decoding.norm_step, (q, k[:1], v, direction, theta, places, state, True), "q's shape"),
        (decoding.norm_step, (q, k, v, direction[:7], theta, places, state, True), "direction must be"),
        (decoding.norm_step, (q, k, v, direction, theta.float(), places, state, True), "theta must be"),
        (decoding.norm_step, (q, k, v, direction, theta, places[:1], state, True), "positions must be"),
        (decoding.norm_step, (q, k, v, direction, theta, places, state[:, :2], True), "state must be"),
        (decoding.norm_step, (q.double(), k, v, direction, theta, places, state, True), "float32"),
        (
            decoding.block_step,
            (q, k, v, direction, theta, 1.0, places + 2, block, block, True),
            "places must",
        ),
        (decoding.block_step, (q, k, v, direction, theta, 1.0, places, block, block[:1], True), "keys and"),
        (decoding.rms_norm, (torch.randn(3).double(), 1e-8), "float32"),
    ]
    for operator, arguments, message in wrong:
        with pytest.raises(RuntimeError, match=message):
            operator(*arguments)


def test_only_where_they_run():
    x = torch.zeros(1)
    assert decoding.decodes(x) and not decoding.decodes(x.double()) and not decoding.decodes(x.to("meta"))
    with torch.enable_grad():
        assert not decoding.decodes(x)
