"""BigBird's attention against arrays of public code and its formula, block by block."""

import pytest
import torch

from tests.helpers.golden import check_attend, load, relative
from user_dir.attention import build_attention
from user_dir.attention.bigbird import draw_blocks


def build(longest, dim=32, heads=4, **options):
    options = {"block_size": 8, **options}
    return build_attention("bigbird", dim, heads, causal=False, max_positions=longest, **options).eval()


def reference(q, k, v, random_blocks, size, last):
    """One row of one head, `q, k, v: (n, d)`, whose last global block is `last`."""
    n, d = q.shape
    rows = []
    for i in range(n):
        own = i // size
        blocks = {0, own - 1, own, own + 1, last}
        if 1 <= own <= len(random_blocks):
            blocks |= set(random_blocks[own - 1].tolist())
        keys = [j for j in range(n) if own in (0, last) or j // size in blocks]
        rows.append(torch.softmax(k[keys] @ q[i] / d**0.5, 0) @ v[keys])
    return torch.stack(rows)


def load_arrays(golden_dir, length):
    arrays = load(golden_dir, "peers_bigbird.npz")
    module = build(length)
    module.load_state_dict(
        {**module.state_dict(), "random_blocks": torch.tensor(arrays[f"L{length}/random_blocks"])}
    )
    return arrays, module


@pytest.mark.parametrize("length", [128, 160])
def test_equals_public_code(golden_dir, length):
    arrays, module = load_arrays(golden_dir, length)
    check_attend(module, arrays, f"L{length}", f"L{length}/full")


@pytest.mark.parametrize(("length", "sizes"), [(128, (128, 100)), (160, (150, 100))])
def test_padding(golden_dir, length, sizes):
    """Public code's global block is the last of the padded row, ours the last with real tokens: the formula
    with one gives the arrays, with the other our attention, and they are one where the row is full."""
    arrays, module = load_arrays(golden_dir, length)
    q, k, v = (torch.tensor(arrays[f"L{length}/{name}"]) for name in "qkv")
    mask = torch.arange(length) >= torch.tensor(sizes)[:, None]
    out = module.attend(q, k, v, mask)
    theirs = torch.tensor(arrays[f"L{length}/padded/output"])
    for row, size in enumerate(sizes):
        own_last = (size - 1) // 8
        for head in range(4):
            inputs = [x[row, head, :size].double() for x in (q, k, v)]
            drawn = module.random_blocks[head]
            ours = reference(*inputs, drawn, 8, own_last).float()
            assert relative(out[row, head, :size], ours) < 1e-5
            as_public = reference(*inputs, drawn, 8, length // 8 - 1).float()
            assert relative(as_public, theirs[row, head, :size]) < 1e-5
    if sizes[0] == length:
        assert relative(out[0], theirs[0]) < 1e-5


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("drawn", [0, 1, 5])
def test_equals_the_formula_on_ragged_rows(size, drawn):
    """Also with blocks drawn beyond a row's end, and drawn where the row's last block lies."""
    module = build(160, 12, 2, block_size=size, random_blocks=drawn).double()
    sizes = [150, 97, 33, 16, 1]
    q, k, v = torch.randn(3, 5, 2, 150, 6, dtype=torch.float64)
    out = module.attend(q, k, v, torch.arange(150) >= torch.tensor(sizes)[:, None])
    for row, n in enumerate(sizes):
        for head in range(2):
            inputs = [x[row, head, :n] for x in (q, k, v)]
            expected = reference(*inputs, module.random_blocks[head], size, (n - 1) // size)
            torch.testing.assert_close(out[row, head, :n], expected)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 6, 8, 64])
def test_drawn_blocks_are_distinct_and_not_seen_anyway(blocks):
    drawn = draw_blocks(4, blocks, 3)
    assert drawn.shape == (4, max(blocks - 2, 0), 3)
    for head in drawn:
        for own, row in enumerate(head.tolist(), start=1):
            free = set(range(1, blocks - 1)) - {own - 1, own, own + 1}
            real = [block for block in row if block != 0]
            assert set(real) <= free and len(real) == len(set(real)) == min(3, len(free))


def test_blocks_are_drawn_from_all_over_the_longest_sequence():
    drawn = draw_blocks(12, 64, 3)
    assert drawn.min() == 1 and drawn.max() == 62
    assert not torch.equal(drawn[0], drawn[1])


def test_blocks_are_drawn_from_a_generator_of_their_own():
    """Later random numbers do not depend on how many blocks are drawn."""
    after = []
    for blocks in (5, 64):
        torch.manual_seed(3)
        drawn = draw_blocks(4, blocks, 3)
        after.append(torch.rand(1))
    assert torch.equal(*after)
    torch.manual_seed(3)
    assert torch.equal(draw_blocks(4, 64, 3), drawn)
    assert not torch.equal(draw_blocks(4, 64, 3), drawn)
