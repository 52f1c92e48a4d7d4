"""Blocks and windows, position by position."""

import pytest
import torch

from user_dir.attention import build_attention
from user_dir.attention.parts.blocks import (
    block_count,
    block_windows,
    gather_blocks,
    join_blocks,
    masked_softmax,
    split_blocks,
)


@pytest.mark.parametrize("size", [1, 4, 7, 20])
@pytest.mark.parametrize("reach", [(0, 0), (2, 0), (3, 5), (30, 1)], ids=str)
def test_windows_hold_the_positions_around_their_block(size, reach):
    before, after = reach
    positions = torch.arange(11).expand(2, 3, 11)
    windows = block_windows(positions, size, before, after, dim=2, value=-1)
    assert windows.shape == (2, 3, block_count(11, size), before + size + after)
    for number, window in enumerate(windows[1, 2].tolist()):
        start = number * size - before
        assert window == [i if 0 <= i < 11 else -1 for i in range(start, start + len(window))]


@pytest.mark.parametrize("length", [1, 8, 9])
def test_join_undoes_split(length):
    x = torch.randn(2, length, 3)
    blocks = split_blocks(x, 4, dim=1, value=9.0)
    assert blocks.shape == (2, block_count(length, 4), 4, 3)
    assert (blocks.flatten(1, 2)[:, length:] == 9).all()
    assert torch.equal(join_blocks(blocks, length, dim=1), x)


def test_gather_takes_blocks_of_the_same_row_and_head():
    x = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    index = torch.randint(4, (2, 1, 7, 2))
    got = gather_blocks(x, index)
    assert got.shape == (2, 3, 7, 2, 5, 6)
    for b in range(2):
        for h in range(3):
            assert torch.equal(got[b, h], x[b, h][index[b, 0]])
    assert torch.autograd.gradcheck(lambda y: gather_blocks(y, index[..., :2, :]), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masked_softmax(dtype):
    scores = (torch.randn(3, 8) * 30).to(dtype)
    visible = torch.rand(3, 8) < 0.5
    visible[0], visible[1] = True, False
    weights = masked_softmax(scores, visible)
    assert weights.dtype == dtype and torch.isfinite(weights).all()
    assert (weights[2][~visible[2]] == 0).all()
    expected = torch.softmax(scores[2, visible[2]].double(), 0)
    torch.testing.assert_close(weights[2, visible[2]], expected.to(dtype))
    assert torch.equal(masked_softmax(scores, None), masked_softmax(scores, torch.ones_like(visible)))


@pytest.mark.parametrize("positions", ["lrpe", "none"])
def test_scores_of_one_place_are_products_over_the_root_of_the_width(positions):
    """LRPE reflects and turns both alike."""
    module = build_attention("diag", 32, 2, causal=True, positions=positions, activation="softmax")
    q, k = torch.randn(2, 1, 2, 5, 16)
    turned = module._positioned(q, k, torch.tensor([0, 3, 7, 7, 63]))
    torch.testing.assert_close((turned[0] * turned[1]).sum(-1), (q * k).sum(-1) / 4)
