"""The Triton kernels of `triton_fused.py`: the steps of a layer between its matrix products.

csrc/fused.h has the formulas. Sums are float32. Channels come in pairs, as LRPE turns them: the even and the
odd ones of a row are two tiles. Numbers that differ from batch to batch are not compiled in.
"""

import triton
import triton.language as tl

from .triton_kernels import as_operand

OF_A_BATCH = ("rows", "length", "batch")
TURN = tl.constexpr(6.283185307179586)


@triton.jit
def factors_of(seed, row, column, THRESHOLD: tl.constexpr, FACTOR: tl.constexpr):
    """The factors of dropout, `(rows, columns)`; see `fused.dropout_factors`."""
    counter = (column // 64 * 16 + column % 16)[None, :] + tl.zeros((row.shape[0], 1), tl.int32)
    low = (row & 0xFFFFFFFF).to(tl.uint32)[:, None] + tl.zeros_like(counter).to(tl.uint32)
    high = (row >> 32).to(tl.uint32)[:, None] + tl.zeros_like(counter).to(tl.uint32)
    a, b, c, d = tl.philox(tl.load(seed), counter, low, high, tl.zeros_like(low), n_rounds=7)
    which = (column // 16 % 4)[None, :]
    word = tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))
    return tl.where(word.to(tl.int64) >= THRESHOLD, FACTOR, 0.0)


@triton.jit(do_not_specialize=OF_A_BATCH)
def residual(
    x,
    y,  # or None
    seed,  # or None
    total,  # where x + dropout(y) is written, or None
    out,  # where its RMSNorm is written, or None
    root,  # (rows) in float32
    rows,
    eps,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    THRESHOLD: tl.constexpr,
    FACTOR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = (row < rows)[:, None] & (column < WIDTH)[None, :]
    places = row[:, None] * WIDTH + column[None, :]
    found = tl.load(x + places, live, 0.0)
    if y is not None:
        branch = tl.load(y + places, live, 0.0).to(tl.float32)
        if seed is not None:
            branch *= factors_of(seed, row, column, THRESHOLD, FACTOR)
        found = (found.to(tl.float32) + branch).to(found.dtype)
        if total is not None:
            tl.store(total + places, found, live)
    if out is not None:
        found = found.to(tl.float32)
        size = tl.sqrt(tl.sum(found * found, 1) / WIDTH)
        tl.store(root + row, size, row < rows)
        tl.store(out + places, (found / (size + eps)[:, None]).to(out.dtype.element_ty), live)


@triton.jit(do_not_specialize=OF_A_BATCH)
def residual_backward(
    grad_total,  # or None
    grad_out,  # or None
    out,
    root,
    seed,  # or None
    grad_x,
    grad_y,  # with a seed
    rows,
    eps,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    THRESHOLD: tl.constexpr,
    FACTOR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = (row < rows)[:, None] & (column < WIDTH)[None, :]
    places = row[:, None] * WIDTH + column[None, :]
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    if grad_total is not None:
        found += tl.load(grad_total + places, live, 0.0).to(tl.float32)
    if grad_out is not None:
        grad = tl.load(grad_out + places, live, 0.0).to(tl.float32)
        normed = tl.load(out + places, live, 0.0).to(tl.float32)
        size = tl.load(root + row, row < rows, 1.0)
        scale = size + eps
        along = tl.where(size > 0.0, tl.sum(normed * grad, 1) / WIDTH * (scale / size), 0.0)
        inverse = 1.0 / scale
        if out.dtype.element_ty == tl.float16:  # which cannot hold the gradient of a row of zeros
            inverse = tl.where(size == 0.0, 0.0, inverse)
        found += (grad - normed * along[:, None]) * inverse[:, None]
    tl.store(grad_x + places, found.to(grad_x.dtype.element_ty), live)
    if seed is not None:
        found *= factors_of(seed, row, column, THRESHOLD, FACTOR)
        tl.store(grad_y + places, found.to(grad_y.dtype.element_ty), live)


@triton.jit
def gated(inputs, stride, out, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """A program computes COLUMNS numbers of a row."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live = column < WIDTH
    gate = tl.load(inputs + row * stride + column, live, 0.0).to(tl.float32)
    value = tl.load(inputs + row * stride + WIDTH + column, live, 0.0).to(tl.float32)
    found = gate * tl.sigmoid(gate) * value
    tl.store(out + row * WIDTH + column, found.to(out.dtype.element_ty), live)


@triton.jit
def gated_backward(
    grad,
    grad_stride,
    inputs,
    stride,
    grad_inputs,
    grad_inputs_stride,
    out,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live = column < WIDTH
    gate = tl.load(inputs + row * stride + column, live, 0.0).to(tl.float32)
    value = tl.load(inputs + row * stride + WIDTH + column, live, 0.0).to(tl.float32)
    given = tl.load(grad + row * grad_stride + column, live, 0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    active = gate * share
    tl.store(out + row * WIDTH + column, (active * value).to(out.dtype.element_ty), live)
    to = grad_inputs + row * grad_inputs_stride + column
    grad_gate = given * value * share * (1.0 + gate * (1.0 - share))
    tl.store(to, grad_gate.to(out.dtype.element_ty), live)
    tl.store(to + WIDTH, (given * active).to(out.dtype.element_ty), live)


@triton.jit
def load_pairs(rows, live, DIM: tl.constexpr, PAIRS: tl.constexpr):
    """Even and odd channels of the rows that these pointers begin, in float32; 0 where there is none."""
    channel = 2 * tl.arange(0, PAIRS)
    places = rows[:, None] + channel[None, :]
    first = tl.load(places, live[:, None] & (channel < DIM)[None, :], 0.0)
    second = tl.load(places + 1, live[:, None] & (channel + 1 < DIM)[None, :], 0.0)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def store_pairs(rows, live, first, second, DIM: tl.constexpr, PAIRS: tl.constexpr):
    channel = 2 * tl.arange(0, PAIRS)
    places = rows[:, None] + channel[None, :]
    kind = rows.dtype.element_ty
    tl.store(places, first.to(kind), live[:, None] & (channel < DIM)[None, :])
    tl.store(places + 1, second.to(kind), live[:, None] & (channel + 1 < DIM)[None, :])


@triton.jit
def turns_of(theta, position, DIM: tl.constexpr, PAIRS: tl.constexpr):
    """Cosine and sine of position * theta, `(rows, pairs)`: the angle's whole turns go in float64."""
    pair = tl.arange(0, PAIRS)
    speed = tl.load(theta + pair, pair < DIM // 2, 0.0).to(tl.float64) / TURN
    turns = position.to(tl.float64)[:, None] * speed[None, :]
    angle = (turns - tl.floor(turns + 0.5)).to(tl.float32) * TURN
    return tl.cos(angle), tl.sin(angle)


@triton.jit
def turned(first, second, cosine, sine):
    return first * cosine - second * sine, first * sine + second * cosine


@triton.jit
def direction_of(direction, DIM: tl.constexpr, PAIRS: tl.constexpr):
    """Its even and odd channels, `(1, pairs)`."""
    return load_pairs(direction + tl.zeros((1,), tl.int32), tl.full((1,), True, tl.int1), DIM, PAIRS)


@triton.jit
def reflected(first, second, direction, DIM: tl.constexpr, PAIRS: tl.constexpr):
    """x - 2 (x . direction) direction."""
    a, b = direction_of(direction, DIM, PAIRS)
    along = 2.0 * tl.sum(first * a + second * b, 1)[:, None]
    return first - along * a, second - along * b


@triton.jit
def mapped(x, MAP: tl.constexpr):
    """Through the feature map, see `fused.MAPS`."""
    if MAP == 0:
        return x
    elif MAP == 1:
        # Near 0 exp(x) - 1 would lose the digits of x.
        series = x * (1.0 + x / 2 * (1.0 + x / 3 * (1.0 + x / 4 * (1.0 + x / 5 * (1.0 + x / 6)))))
        return tl.where(x > 0.0, x, tl.where(x > -0.35, series, tl.exp(x) - 1.0))
    else:
        return tl.where(x > 0.0, x + 1.0, tl.exp(x))


@triton.jit
def slope_of(x, MAP: tl.constexpr):
    if MAP == 0:
        return tl.full(x.shape, 1.0, tl.float32)
    else:
        return tl.where(x > 0.0, 1.0, tl.exp(tl.minimum(x, 0.0)))


@triton.jit(do_not_specialize=OF_A_BATCH)
def features(
    qkv,
    direction,  # or None
    theta,
    q,
    k,
    length,
    batch,
    scale,
    MAP: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """A program computes POSITIONS of a head."""
    part = tl.program_id(0).to(tl.int64)
    head, b = part % HEADS, part // HEADS % batch
    position = part // HEADS // batch * POSITIONS + tl.arange(0, POSITIONS)
    live = position < length
    if direction is not None:
        cosine, sine = turns_of(theta, position, DIM, PAIRS)
    for which in tl.static_range(2):
        rows = qkv + (((position * batch + b) * 3 + which) * HEADS + head) * DIM
        first, second = load_pairs(rows, live, DIM, PAIRS)
        first, second = mapped(first, MAP), mapped(second, MAP)
        if direction is not None:
            first, second = reflected(first, second, direction, DIM, PAIRS)
            first, second = turned(first, second, cosine, sine)
        to = (q if which == 0 else k) + ((b * HEADS + head) * length + position) * DIM
        store_pairs(to, live, scale * first, scale * second, DIM, PAIRS)


@triton.jit(do_not_specialize=OF_A_BATCH)
def features_backward(
    grad_q,
    q_strides,  # of batch, heads and positions
    grad_k,
    k_strides,
    grad_v,
    v_strides,
    qkv,
    direction,  # or None
    theta,
    grad_qkv,
    grad_theta,  # (programs, DIM // 2)
    length,
    batch,
    scale,
    MAP: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    part = tl.program_id(0).to(tl.int64)
    head, b = part % HEADS, part // HEADS % batch
    position = part // HEADS // batch * POSITIONS + tl.arange(0, POSITIONS)
    live = position < length
    if direction is not None:
        cosine, sine = turns_of(theta, position, DIM, PAIRS)
        gained = tl.zeros((POSITIONS, PAIRS), tl.float32)
    for which in tl.static_range(3):
        grads = grad_q if which == 0 else grad_k if which == 1 else grad_v
        strides = q_strides if which == 0 else k_strides if which == 1 else v_strides
        grads += b * strides[0] + head * strides[1] + position * strides[2]
        first, second = load_pairs(grads, live, DIM, PAIRS)
        at = (((position * batch + b) * 3 + which) * HEADS + head) * DIM
        if which < 2:
            x, y = load_pairs(qkv + at, live, DIM, PAIRS)
            if direction is not None:
                first, second = turned(first, second, cosine, -sine)
                a, c = reflected(mapped(x, MAP), mapped(y, MAP), direction, DIM, PAIRS)
                gained += scale * (a * second - c * first)
                first, second = reflected(first, second, direction, DIM, PAIRS)
            first, second = scale * first * slope_of(x, MAP), scale * second * slope_of(y, MAP)
        store_pairs(grad_qkv + at, live, first, second, DIM, PAIRS)
    if direction is not None:
        store_theta(grad_theta, part, gained, position, DIM, PAIRS)


@triton.jit
def store_theta(grad_theta, part, gained, position, DIM: tl.constexpr, PAIRS: tl.constexpr):
    """Theta's gradient, from the rows' gradients `gained` by their angles, position * theta."""
    pair = tl.arange(0, PAIRS)
    found = tl.sum(gained * position.to(tl.float32)[:, None], 0)
    tl.store(grad_theta + part * (DIM // 2) + pair, found, pair < DIM // 2)


@triton.jit
def read_turned(qkv, at, live, direction, cosine, sine, scale, DIM: tl.constexpr, PAIRS: tl.constexpr):
    """Queries or keys of a block in float32, as scores multiply them."""
    first, second = load_pairs(qkv + at, live, DIM, PAIRS)
    if direction is not None:
        first, second = reflected(first, second, direction, DIM, PAIRS)
        first, second = turned(first, second, cosine, sine)
    return scale * first, scale * second


@triton.jit
def load_block(rows, live, DIM: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    return tl.load(rows[:, None] + column[None, :], live[:, None] & (column < DIM)[None, :], 0.0)


@triton.jit
def multiplied(a, b, CAST: tl.constexpr, PRECISION: tl.constexpr):
    """a @ b in float32, of operands in the products' type."""
    a, b = as_operand(a, CAST, PRECISION), as_operand(b, CAST, PRECISION)
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=tl.float32)


@triton.jit
def weights_of(scores, visible, SOFTMAX: tl.constexpr):
    """The weights of a block before dropout, 0 where no key is visible."""
    if SOFTMAX:
        scores = tl.where(visible, scores, float("-inf"))
        top = tl.max(scores, 1)
        top = tl.where(top == float("-inf"), 0.0, top)
        weights = tl.exp(scores - top[:, None])
        total = tl.sum(weights, 1)
        return weights / tl.where(total == 0.0, 1.0, total)[:, None]
    else:
        return tl.where(visible, tl.where(scores < 0.0, 0.0, scores), 0.0)


@triton.jit
def block_of(
    qkv,
    direction,
    theta,
    padding,
    length,
    batch,
    scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    POSITIONS: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFTMAX: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    CAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The part of a program's block that forward and backward share.

    Where its queries and outputs begin, which rows live, dropout's rows, turns, queries, keys, weights before
    dropout.
    """
    program = tl.program_id(0).to(tl.int64)
    head, b = program % HEADS, program // HEADS % batch
    place = tl.arange(0, ROWS)
    position = program // HEADS // batch * POSITIONS + place
    live = (place < POSITIONS) & (position < length)
    if direction is not None:
        cosine, sine = turns_of(theta, place, DIM, PAIRS)
    else:
        cosine, sine = 1.0, 0.0
    token = position * batch + b
    at = (token * 3 * HEADS + head) * DIM
    q1, q2 = read_turned(qkv, at, live, direction, cosine, sine, scale, DIM, PAIRS)
    k1, k2 = read_turned(qkv, at + HEADS * DIM, live, direction, cosine, sine, scale, DIM, PAIRS)
    scores = multiplied(q1, tl.trans(k1), CAST, PRECISION) + multiplied(q2, tl.trans(k2), CAST, PRECISION)
    visible = live[:, None] & live[None, :]
    if CAUSAL:
        visible &= place[None, :] <= place[:, None]
    if padding is not None:
        visible &= (tl.load(padding + b * length + position, live, 1) == 0)[None, :]
    row = (b * HEADS + head) * length + position
    weights = weights_of(scores, visible, SOFTMAX)
    return at, (token * HEADS + head) * DIM, live, row, cosine, sine, q1, q2, k1, k2, weights


@triton.jit(do_not_specialize=OF_A_BATCH)
def blocks(
    qkv,
    direction,  # or None
    theta,
    padding,  # (batch, length) or None
    seed,  # or None
    out,
    length,
    batch,
    scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    POSITIONS: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFTMAX: tl.constexpr,
    THRESHOLD: tl.constexpr,
    FACTOR: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A program computes a block of a head."""
    at, to, live, row, _, _, _, _, _, _, weights = block_of(
        *(qkv, direction, theta, padding, length, batch, scale),
        *(HEADS, DIM, POSITIONS, CAUSAL, SOFTMAX, ROWS, PAIRS, CAST, PRECISION),
    )
    if seed is not None:
        weights *= factors_of(seed, row, tl.arange(0, ROWS), THRESHOLD, FACTOR)
    values = load_block(qkv + at + 2 * HEADS * DIM, live, DIM, COLUMNS)
    found = multiplied(weights, values, CAST, PRECISION).to(out.dtype.element_ty)
    column = tl.arange(0, COLUMNS)
    tl.store(out + to[:, None] + column[None, :], found, live[:, None] & (column < DIM)[None, :])


@triton.jit(do_not_specialize=OF_A_BATCH)
def blocks_backward(
    grad,
    qkv,
    direction,  # or None
    theta,
    padding,  # (batch, length) or None
    seed,  # or None
    grad_qkv,
    grad_theta,  # (programs, DIM // 2)
    length,
    batch,
    scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    POSITIONS: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFTMAX: tl.constexpr,
    THRESHOLD: tl.constexpr,
    FACTOR: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    at, of_output, live, row, cosine, sine, q1, q2, k1, k2, weights = block_of(
        *(qkv, direction, theta, padding, length, batch, scale),
        *(HEADS, DIM, POSITIONS, CAUSAL, SOFTMAX, ROWS, PAIRS, CAST, PRECISION),
    )
    given = load_block(grad + of_output, live, DIM, COLUMNS)
    values = load_block(qkv + at + 2 * HEADS * DIM, live, DIM, COLUMNS)
    slopes = multiplied(given, tl.trans(values), CAST, PRECISION)
    dropped = weights
    if seed is not None:
        factors = factors_of(seed, row, tl.arange(0, ROWS), THRESHOLD, FACTOR)
        slopes *= factors
        dropped *= factors
    column = tl.arange(0, COLUMNS)
    found = multiplied(tl.trans(dropped), given, CAST, PRECISION).to(grad_qkv.dtype.element_ty)
    to = grad_qkv + (at + 2 * HEADS * DIM)[:, None] + column[None, :]
    tl.store(to, found, live[:, None] & (column < DIM)[None, :])
    if SOFTMAX:
        slopes = weights * (slopes - tl.sum(slopes * weights, 1)[:, None])
    else:
        slopes = tl.where(weights > 0.0, slopes, 0.0)
    gained = tl.zeros((ROWS, PAIRS), tl.float32)
    for which in tl.static_range(2):
        if which == 0:
            first, second = multiplied(slopes, k1, CAST, PRECISION), multiplied(slopes, k2, CAST, PRECISION)
            x, y = q1, q2
        else:
            down = tl.trans(slopes)
            first, second = multiplied(down, q1, CAST, PRECISION), multiplied(down, q2, CAST, PRECISION)
            x, y = k1, k2
        gained += x * second - y * first  # the same, turned back or not
        if direction is not None:
            first, second = turned(first, second, cosine, -sine)
            first, second = reflected(first, second, direction, DIM, PAIRS)
        to = grad_qkv + at + which * HEADS * DIM
        store_pairs(to, live, scale * first, scale * second, DIM, PAIRS)
    if direction is not None:
        store_theta(grad_theta, tl.program_id(0).to(tl.int64), gained, tl.arange(0, ROWS), DIM, PAIRS)
