"""The Triton kernels: causal linear attention and each of its gradients as one scan over the rows of a head.

    out[i] = sum over j <= i of (a[i] . b[j]) c[j]  +  a[i] @ S,      S: (depth, width)

    KIND   a         b         c         direction
    "out"  q         k         v         forwards
    "q"    grad_out  v         k         forwards
    "k"    v         grad_out  q         backwards
    "v"    k         q         grad_out  backwards

A program scans one segment of one head in chunks, for a block of c's columns, with S in registers. With a
normaliser grad_out is multiplied by `inverse`, 1 / (q . z + eps), and `slope` is the gradient of q . z.
States are stored as the operator returns them, (D, M) or (D, M + 1) with z as the last column, so "q" and "k"
read them transposed. Segments are counted in the direction of the scan. With `cu_seqlens` the one row of the
batch holds several sequences. Programs are counted as states are: by batch row or sequence, head, segment.

CAST is the type of the products' operands, ACC that of their sums, PRECISION the products' (tl.dot's). The
numbers that differ from batch to batch are not compiled in: a new length runs the kernels of the one before.
"""

import triton
import triton.language as tl

OF_A_BATCH = ("heads", "rows", "segments", "segment_rows")


@triton.jit
def as_operand(x, CAST: tl.constexpr, PRECISION: tl.constexpr):
    """x in the type of the products, rounded to the nearest TensorFloat-32 if that is their precision."""
    x = x.to(CAST)
    if PRECISION == "tf32":
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000
        x = tl.where(tl.abs(x) < float("inf"), bits.to(tl.float32, bitcast=True), x)
    return x


@triton.jit
def load_rows(head, first, stride, live, columns, COLUMNS: tl.constexpr, CAST: tl.constexpr):
    """Rows from `first` on of a head, zero where they are not live or have no such column."""
    rows = first + tl.arange(0, live.shape[0]).to(tl.int64)
    mask = live[:, None] & (columns < COLUMNS)[None, :]
    return tl.load(head + rows[:, None] * stride + columns[None, :], mask, 0.0).to(CAST)


@triton.jit
def load_numbers(pointer, first, live):
    """One number per row from `first` on, zero where the row is not live."""
    return tl.load(pointer + first + tl.arange(0, live.shape[0]), live, 0.0)


@triton.jit
def load_scaled(
    head,
    first,
    stride,
    live,
    columns,
    factors,
    COLUMNS: tl.constexpr,
    CAST: tl.constexpr,
    PRECISION: tl.constexpr,
    SCALE: tl.constexpr,
):
    """As `load_rows`, each row times its factor if SCALE."""
    rows = load_rows(head, first, stride, live, columns, COLUMNS, CAST)
    if SCALE:
        rows = as_operand(rows * factors[:, None], CAST, PRECISION)
    return rows


@triton.jit
def weighted_sum(
    weights, c, REVERSE: tl.constexpr, CAREFUL: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr
):
    """weights @ c; if CAREFUL, zeros among the weights keep out a NaN or an infinity of c, too."""
    if CAREFUL:
        finite = tl.abs(c.to(ACC)) < float("inf")
        spread = tl.cumsum(tl.where(finite, 0.0, float("nan")), 0, reverse=REVERSE).to(ACC)
        c = tl.where(finite, c, 0.0).to(c.dtype)
        weights = as_operand(weights, c.dtype, PRECISION)
        return tl.dot(weights, c, input_precision=PRECISION, out_dtype=ACC) + spread
    else:
        weights = as_operand(weights, c.dtype, PRECISION)
        return tl.dot(weights, c, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def state_offsets(
    depth,
    width,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Where a state's elements (depth, width) lie, and which of them exist."""
    if TRANSPOSED:
        offsets = width[None, :] * (VALUES + NORMALIZE) + depth[:, None]
        mask = (depth < VALUES)[:, None] & (width < KEYS)[None, :]
    else:
        offsets = depth[:, None] * (VALUES + NORMALIZE) + width[None, :]
        mask = (depth < KEYS)[:, None] & (width < VALUES)[None, :]
    return offsets, mask


@triton.jit
def segment_of(cu_seqlens, heads, rows, segments, segment_rows, REVERSE: tl.constexpr, CHUNK: tl.constexpr):
    """Of this program: its head among the tensors' heads, the first row and the end of its segment."""
    program = tl.program_id(0).to(tl.int64)
    head, segment = program // segments, program % segments
    place = segments - 1 - segment if REVERSE else segment
    if cu_seqlens is None:
        begin = place * segment_rows
        end = tl.minimum(begin + segment_rows, rows)
    else:
        head, sequence = head % heads, head // heads
        start, stop = tl.load(cu_seqlens + sequence), tl.load(cu_seqlens + sequence + 1)
        own_rows = tl.cdiv(tl.cdiv(stop - start, segments), CHUNK) * CHUNK
        begin = start + place * own_rows
        end = tl.minimum(begin + own_rows, stop)
    return head, begin, end


@triton.jit
def walk(
    rows_of_head,
    others,
    part,
    state,
    z,
    eps,
    KIND: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    CAST: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
    CAREFUL: tl.constexpr,
):
    """Writes the outputs of rows [begin, end) of a head and returns the state and z after them."""
    a, a_stride, b, b_stride, c, c_stride, out, out_stride = rows_of_head
    outputs, output_stride, inverse, slope = others
    begin, end, depth, width = part
    REVERSE: tl.constexpr = KIND == "k" or KIND == "v"
    DEPTH: tl.constexpr = VALUES if KIND == "q" or KIND == "k" else KEYS
    WIDTH: tl.constexpr = KEYS if KIND == "q" or KIND == "k" else VALUES
    row = tl.arange(0, CHUNK)
    causal = row[None, :] >= row[:, None] if REVERSE else row[None, :] <= row[:, None]
    factors = tl.zeros((CHUNK,), ACC)
    chunks = tl.cdiv(end - begin, CHUNK)
    for step in range(0, chunks):
        first = begin + (chunks - 1 - step if REVERSE else step) * CHUNK
        live = first + row < end
        if NORMALIZE and KIND != "out":
            factors = load_numbers(inverse, first, live)
        x = load_scaled(
            *(a, first, a_stride, live, depth, factors, DEPTH, CAST, PRECISION), NORMALIZE and KIND == "q"
        )
        y = load_scaled(
            *(b, first, b_stride, live, depth, factors, DEPTH, CAST, PRECISION), NORMALIZE and KIND == "k"
        )
        u = load_scaled(
            *(c, first, c_stride, live, width, factors, WIDTH, CAST, PRECISION), NORMALIZE and KIND == "v"
        )
        weights = tl.dot(x, tl.trans(y), input_precision=PRECISION, out_dtype=ACC)
        if NORMALIZE and KIND == "q":
            slopes = -tl.sum(x.to(ACC) * load_rows(outputs, first, output_stride, live, depth, DEPTH, ACC), 1)
            weights += slopes[:, None]
            if tl.program_id(1) == 0:
                tl.store(slope + first + row, slopes, live)
        if NORMALIZE and KIND == "k":
            slopes = load_numbers(slope, first, live)
            weights += slopes[None, :]
        weights = tl.where(causal, weights, 0.0)
        result = weighted_sum(weights, u, REVERSE, CAREFUL, PRECISION, ACC)
        result += tl.dot(x, as_operand(state, CAST, PRECISION), input_precision=PRECISION, out_dtype=ACC)

        if NORMALIZE and KIND == "out":
            factors = 1.0 / (tl.sum(weights, 1) + tl.sum(x.to(ACC) * z[None, :], 1) + eps)
            result *= factors[:, None]
            if tl.program_id(1) == 0:
                tl.store(inverse + first + row, factors, live)
            z += tl.sum(y.to(ACC), 0)
        if NORMALIZE and KIND == "q":
            result += slopes[:, None] * z[None, :]
            z += tl.sum(u.to(ACC), 0)
        if NORMALIZE and KIND == "k":
            result += z[None, :]
            z += tl.sum(u.to(ACC) * slopes[:, None], 0)
        state += tl.dot(tl.trans(y), u, input_precision=PRECISION, out_dtype=ACC)

        places = (first + row)[:, None] * out_stride + width[None, :]
        tl.store(out + places, result.to(out.dtype.element_ty), live[:, None] & (width < WIDTH)[None, :])
    return state, z


@triton.jit(do_not_specialize=OF_A_BATCH)
def chunk_scan(
    a,
    a_strides,  # of batch, head and row; columns are dense
    b,
    b_strides,
    c,
    c_strides,
    out,
    out_strides,
    outputs,  # of the forward pass, which "q" reads with a normaliser
    output_strides,
    entering,  # (batch or sequences, heads, segments) states, or None for zero
    leaving,  # (batch or sequences, heads) states, or None: not wanted (one segment only)
    inverse,  # (batch, heads, rows), with a normaliser; "out" writes it
    slope,  # the same; "q" writes it, "k" reads it
    cu_seqlens,  # (sequences + 1), or None
    heads,
    rows,
    segments,
    segment_rows,
    eps,
    KIND: tl.constexpr,
    KEYS: tl.constexpr,  # D
    VALUES: tl.constexpr,  # M
    NORMALIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    DEPTH_BLOCK: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    CAST: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    REVERSE: tl.constexpr = KIND == "k" or KIND == "v"
    TRANSPOSED: tl.constexpr = KIND == "q" or KIND == "k"
    head, begin, end = segment_of(cu_seqlens, heads, rows, segments, segment_rows, REVERSE, CHUNK)
    batch, of_batch = head // heads, head % heads
    a += batch * a_strides[0] + of_batch * a_strides[1]
    b += batch * b_strides[0] + of_batch * b_strides[1]
    c += batch * c_strides[0] + of_batch * c_strides[1]
    out += batch * out_strides[0] + of_batch * out_strides[1]
    outputs += batch * output_strides[0] + of_batch * output_strides[1]
    if NORMALIZE:
        inverse += head * rows
        if slope is not None:
            slope += head * rows

    depth = tl.arange(0, DEPTH_BLOCK)
    width = tl.program_id(1) * WIDTH_BLOCK + tl.arange(0, WIDTH_BLOCK)
    offsets, exists = state_offsets(depth, width, KEYS, VALUES, NORMALIZE, TRANSPOSED)
    size = KEYS * (VALUES + NORMALIZE)
    key = depth if KIND == "out" else width  # z has one number for each column of the keys
    state = tl.zeros((DEPTH_BLOCK, WIDTH_BLOCK), ACC)
    z = tl.zeros(key.shape, ACC)
    if entering is not None:
        entering += tl.program_id(0).to(tl.int64) * size
        state = tl.load(entering + offsets, exists, 0.0)
        if NORMALIZE and KIND != "v":
            z = tl.load(entering + key * (VALUES + 1) + VALUES, key < KEYS, 0.0)

    rows_of_head = (a, a_strides[2], b, b_strides[2], c, c_strides[2], out, out_strides[2])
    others = (outputs, output_strides[2], inverse, slope)
    part = (begin, end, depth, width)
    final, final_z = walk(
        *(rows_of_head, others, part, state, z, eps),
        *(KIND, KEYS, VALUES, NORMALIZE, CHUNK, CAST, ACC, PRECISION, False),
    )
    finite = tl.abs(final) < float("inf")
    if tl.min(tl.min(finite.to(tl.int32), 1), 0) == 0:  # so are some inputs: once more, with small tiles
        final, final_z = walk(
            *(rows_of_head, others, part, state, z, eps),
            *(KIND, KEYS, VALUES, NORMALIZE, 16, CAST, ACC, PRECISION, True),
        )
    if leaving is not None:
        leaving += tl.program_id(0).to(tl.int64) * size
        tl.store(leaving + offsets, final, exists)
        if NORMALIZE and KIND != "v" and (KIND != "out" or tl.program_id(1) == 0):
            tl.store(leaving + key * (VALUES + 1) + VALUES, final_z, key < KEYS)


@triton.jit(do_not_specialize=OF_A_BATCH)
def segment_sums(
    keys,
    key_strides,
    values,
    value_strides,
    sums,  # (batch or sequences, heads, segments) states
    inverse,  # (batch, heads, rows) factors of the values, or None
    slope,  # the same, of z
    cu_seqlens,  # (sequences + 1), or None
    heads,
    rows,
    segments,
    segment_rows,
    REVERSE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    CAST: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The sum of keys[j]^T values[j] over each segment, and with a normaliser that of the keys."""
    head, begin, end = segment_of(cu_seqlens, heads, rows, segments, segment_rows, REVERSE, CHUNK)
    keys += head // heads * key_strides[0] + head % heads * key_strides[1]
    values += head // heads * value_strides[0] + head % heads * value_strides[1]
    key = tl.arange(0, KEY_BLOCK)
    value = tl.program_id(1) * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)
    state = tl.zeros((KEY_BLOCK, VALUE_BLOCK), ACC)
    z = tl.zeros((KEY_BLOCK,), ACC)
    factors = tl.zeros((CHUNK,), ACC)
    for step in range(0, tl.cdiv(end - begin, CHUNK)):
        first = begin + step * CHUNK
        live = first + tl.arange(0, CHUNK) < end
        if inverse is not None:
            factors = load_numbers(inverse, head * rows + first, live)
        x = load_rows(keys, first, key_strides[2], live, key, KEYS, CAST)
        y = load_scaled(
            *(values, first, value_strides[2], live, value, factors, VALUES, CAST, PRECISION),
            inverse is not None,
        )
        state += tl.dot(tl.trans(x), y, input_precision=PRECISION, out_dtype=ACC)
        if slope is not None:
            z += tl.sum(x.to(ACC) * load_numbers(slope, head * rows + first, live)[:, None], 0)
        elif NORMALIZE:
            z += tl.sum(x.to(ACC), 0)
    sums += tl.program_id(0).to(tl.int64) * KEYS * (VALUES + NORMALIZE)
    offsets, exists = state_offsets(key, value, KEYS, VALUES, NORMALIZE, False)
    tl.store(sums + offsets, state, exists)
    if NORMALIZE and tl.program_id(1) == 0:
        tl.store(sums + key * (VALUES + 1) + VALUES, z, key < KEYS)


@triton.jit(do_not_specialize=["segments"])
def prefix(sums, initial, total, segments, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """In place, each segment's sum to the state that enters it; the last state to `total`, if wanted."""
    head = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = element < SIZE
    state = tl.zeros((BLOCK,), sums.dtype.element_ty)
    if initial is not None:
        state = tl.load(initial + head * SIZE + element, exists, 0.0)
    for segment in range(0, segments):
        place = sums + (head * segments + segment) * SIZE + element
        added = tl.load(place, exists, 0.0)
        tl.store(place, state, exists)
        state += added
    if total is not None:
        tl.store(total + head * SIZE + element, state, exists)
