"""The Triton kernels of `fused_loss.py`: logits of a tile of rows and words, which never leave the chip.

    logit[i, w] = x[i] . weight[w] + bias[w]

Sums are float32. The numbers that differ from batch to batch are not compiled in. Programs are numbered by
row first: those that run at a time read the same words, which the cache then holds.
"""

import triton
import triton.language as tl

OF_A_BATCH = ("rows", "words", "first")
LOWEST = tl.constexpr(-3.4028234663852886e38)  # finite, so that differences are numbers


@triton.jit
def tile_of_logits(
    x, x_stride, row, weight, weight_stride, word, bias, WIDTH: tl.constexpr, DEPTH: tl.constexpr
):
    """Logits `(rows, words)` in float32 of the rows and words with these indices, all of which exist."""
    column = tl.arange(0, DEPTH)
    a = x + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    b = weight + word.to(tl.int64)[None, :] * weight_stride + column[:, None]
    logits = tl.zeros((row.shape[0], word.shape[0]), tl.float32)
    for start in range(0, WIDTH, DEPTH):
        if WIDTH % DEPTH == 0:
            left, right = tl.load(a + start), tl.load(b + start)
        else:
            inside = start + column < WIDTH
            left = tl.load(a + start, inside[None, :], 0.0)
            right = tl.load(b + start, inside[:, None], 0.0)
        logits = tl.dot(left, right, logits, input_precision="ieee")
    if bias is not None:
        logits += tl.load(bias + word).to(tl.float32)[None, :]
    return logits


@triton.jit(do_not_specialize=OF_A_BATCH)
def sums(
    x,
    x_stride,
    weight,
    weight_stride,
    bias,  # (words) or None
    target,  # (rows) in int32; a number that is not a word belongs to no program
    largest,  # (spans, rows): the largest logit of a span of words
    total,  # (spans, rows): the sum of exp(logit - largest)
    chosen,  # (rows): the target's logit
    rows,
    words,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The share of this program's SPAN words in the loss of ROWS rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    read = tl.minimum(row, rows - 1)
    begin = tl.program_id(1) * SPAN
    end = tl.minimum(begin + SPAN, words)
    wanted = tl.load(target + read)
    most = tl.full((ROWS,), LOWEST, tl.float32)
    summed = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS,), tl.float32)
    for start in range(begin, end, WORDS):
        word = start + tl.arange(0, WORDS)
        logits = tile_of_logits(
            x, x_stride, read, weight, weight_stride, tl.minimum(word, words - 1), bias, WIDTH, DEPTH
        )
        found += tl.sum(tl.where(word[None, :] == wanted[:, None], logits, 0.0), 1)
        logits = tl.where((word < end)[None, :], logits, float("-inf"))
        higher = tl.maximum(most, tl.max(logits, 1))
        summed = summed * tl.exp(most - higher) + tl.sum(tl.exp(logits - higher[:, None]), 1)
        most = higher
    place = tl.program_id(1).to(tl.int64) * rows + row
    tl.store(largest + place, most, live)
    tl.store(total + place, summed, live)
    tl.store(chosen + row, found, live & (wanted >= begin) & (wanted < end))


@triton.jit(do_not_specialize=OF_A_BATCH)
def errors(
    x,
    x_stride,
    weight,
    weight_stride,
    bias,  # (words) or None
    target,  # (rows) in int32
    norm,  # (rows): the logarithm of the sum of exp(logit)
    scale,  # (rows)
    out,  # (rows, the words from `first` on)
    out_stride,
    rows,
    words,
    first,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """(probability - [the target]) * scale, of one tile."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    read = tl.minimum(row, rows - 1)
    place = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    word = first + place
    logits = tile_of_logits(
        x, x_stride, read, weight, weight_stride, tl.minimum(word, words - 1), bias, WIDTH, DEPTH
    )
    found = tl.exp(logits - tl.load(norm + read)[:, None])
    found = tl.where(word[None, :] == tl.load(target + read)[:, None], found - 1.0, found)
    found *= tl.load(scale + read)[:, None]
    places = row.to(tl.int64)[:, None] * out_stride + place[None, :]
    tl.store(out + places, found.to(out.dtype.element_ty), (row < rows)[:, None] & (word < words)[None, :])
