"""The Triton kernels: causal linear attention and each of its gradients as one scan over the rows of a head.

`step` computes one position, for decoding. What follows is about the other kernels.

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

With decays e, by which a row multiplies the state before it is added, a term has the product of those between
its two rows. Then "q" stores q . grad_q of each row and the state after every KEPT rows of a segment, and "k"
makes log_decay's gradient of them: the sum of q . grad_q - k . grad_k from a row to the next such place, and
the product of the state and its gradient there.

CAST is the type of the products' operands, ACC the type of their sums, PRECISION the products' (tl.dot's).
Numbers that differ from batch to batch are not compiled in: all lengths run the same kernels.
"""

import triton
import triton.language as tl

OF_A_BATCH = ("heads", "rows", "segments", "segment_rows", "decay_of_batch", "decay_of_head", "decay_of_row")


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
def weakened(factors, x):
    """factors * x; numbers hidden by a factor of 0 may be anything."""
    return tl.where(factors == 0.0, 0.0, factors * x)


@triton.jit
def weighted_sum(
    weights,
    c,
    between,  # the decays that the weights have, or None
    REVERSE: tl.constexpr,
    CAREFUL: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """weights @ c; if CAREFUL, zeros among the weights keep out a NaN or an infinity of c, too."""
    if CAREFUL:
        finite = tl.abs(c.to(ACC)) < float("inf")
        if between is None:
            spread = tl.cumsum(tl.where(finite, 0.0, float("nan")), 0, reverse=REVERSE).to(ACC)
        else:
            # 0 and 1, but no comparison alone: Triton 3.9 cannot compile one as a product's operand.
            seen = tl.where(between == 0.0, 0.0, between / between)
            others = tl.where(finite, 0.0 * c.to(ACC), 1.0).to(ACC)
            reached = tl.dot(seen, others, input_precision=PRECISION, out_dtype=ACC)
            spread = tl.where(reached > 0.0, float("nan"), 0.0).to(ACC)
        c = tl.where(finite, c, 0.0).to(c.dtype)
        weights = as_operand(weights, c.dtype, PRECISION)
        return tl.dot(weights, c, input_precision=PRECISION, out_dtype=ACC) + spread
    else:
        weights = as_operand(weights, c.dtype, PRECISION)
        return tl.dot(weights, c, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def decays_of(decay, stride, first, live, REVERSE: tl.constexpr, CAREFUL: tl.constexpr):
    """The decays of a chunk.

    Returns that between two rows, as the weights have them; of a row, that from where the scan begins and
    that to where it ends; that of all rows; and e[row] and which rows a decay of 0 parts. If CAREFUL, a 0
    hides a decay that is not finite, too.
    """
    row = tl.arange(0, live.shape[0])
    e = tl.load(decay + (first + row) * stride, live, 1.0)
    zero = (e == 0.0).to(tl.int32)
    factors = tl.where(zero == 1, 1.0, e) if CAREFUL else e
    if REVERSE:
        causal, later = row[None, :] >= row[:, None], row[None, :] > row[:, None]
        between = tl.cumprod(tl.where(later, factors[None, :], 1.0), 1)
        parted = tl.cumsum(tl.where(later, zero[None, :], 0), 1) > 0
    else:
        causal, later = row[None, :] <= row[:, None], row[None, :] < row[:, None]
        between = tl.cumprod(tl.where(later, factors[:, None], 1.0), 0)
        parted = tl.cumsum(tl.where(later, zero[:, None], 0), 0) > 0
    since_start = tl.cumprod(factors, 0)
    if CAREFUL:
        between = tl.where(parted, 0.0, between)
        since_start = tl.where(tl.cumsum(zero, 0) > 0, 0.0, since_start)
    between = tl.where(causal, between, 0.0)
    last = row == live.shape[0] - 1
    total = tl.sum(tl.where(last, since_start, 0.0), 0)
    if REVERSE:
        to_end = tl.sum(tl.where(last[None, :], between, 0.0), 1)
        return between, to_end, since_start, total, e, parted
    else:
        to_end = tl.sum(tl.where(last[:, None], between, 0.0), 0)
        return between, since_start, to_end, total, e, parted


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
def offset_of(batch, head, strides):
    """Where a head of q finds its rows, see `chunk_scan`."""
    return batch * strides[0] + head // strides[3] * strides[1]


@triton.jit
def owned(exists, head, group, ONCE: tl.constexpr):
    """Which numbers exist of the state that `group` heads share; only for the first of them, if ONCE."""
    return tl.where(head % group == 0, exists, False) if ONCE else exists


@triton.jit
def segment_of(cu_seqlens, heads, rows, segments, segment_rows, REVERSE: tl.constexpr, CHUNK: tl.constexpr):
    """This program's head among the tensors' heads, and the first row and the end of its segment."""
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
def state_product(
    kept,
    state,
    z,
    place,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    ACC: tl.constexpr,
):
    """The sum of a kept state's elements times those of its gradient, over this program's columns."""
    offsets, exists, key = place
    found = tl.sum(tl.sum(weakened(state, tl.load(kept + offsets, exists, 0.0)), 1), 0)
    if NORMALIZE:
        found += tl.sum(weakened(z, tl.load(kept + key * (VALUES + 1) + VALUES, key < KEYS, 0.0)), 0)
    return found.to(ACC)


@triton.jit
def walk(
    rows_of_head,
    others,
    decays,
    part,
    place,
    state,
    z,
    eps,
    scale,
    KIND: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    CAST: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
    KEPT: tl.constexpr,
    CAREFUL: tl.constexpr,
):
    """Writes the outputs of rows [begin, end) of a head and returns the state and z after them."""
    a, a_stride, b, b_stride, c, c_stride, out, out_stride = rows_of_head
    outputs, output_stride, inverse, slope = others
    decay, decay_stride, dotted, dotted_stride, dots, kept, ends, grad_decay = decays
    begin, end, depth, width = part
    offsets, exists, key = place
    REVERSE: tl.constexpr = KIND == "k" or KIND == "v"
    DEPTH: tl.constexpr = VALUES if KIND == "q" or KIND == "k" else KEYS
    WIDTH: tl.constexpr = KEYS if KIND == "q" or KIND == "k" else VALUES
    SIZE: tl.constexpr = KEYS * (VALUES + NORMALIZE)
    row = tl.arange(0, CHUNK)
    causal = row[None, :] >= row[:, None] if REVERSE else row[None, :] <= row[:, None]
    factors = tl.zeros((CHUNK,), ACC)
    grad_after = tl.sum(factors, 0)  # log_decay's gradient of the row after the chunk, as the sum continues
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
        of_state = tl.dot(x, as_operand(state, CAST, PRECISION), input_precision=PRECISION, out_dtype=ACC)
        if decay is None:
            between = None
            weights = tl.where(causal, weights, 0.0)
            seen = z[None, :]  # of z, by a row
        else:
            between, of_start, of_end, total, e, parted = decays_of(
                decay, decay_stride, first, live, REVERSE, CAREFUL
            )
            weights = weakened(between, weights)
            of_state = weakened(of_start[:, None], of_state)
            seen = weakened(of_start[:, None], z[None, :])
        result = weighted_sum(weights, u, between, REVERSE, CAREFUL, PRECISION, ACC) + of_state

        if KIND == "out":
            result *= scale
        added = u.to(ACC) if KIND != "out" else y.to(ACC)  # to z
        if NORMALIZE and KIND == "out":
            factors = 1.0 / (tl.sum(weights, 1) + tl.sum(x.to(ACC) * seen, 1) + eps)
            result *= factors[:, None]
            if tl.program_id(1) == 0:
                tl.store(inverse + first + row, factors, live)
        if NORMALIZE and KIND == "q":
            result += slopes[:, None] * seen
        if NORMALIZE and KIND == "k":
            result += seen
            added *= slopes[:, None]

        if dots is not None:
            rows = load_rows(dotted, first, dotted_stride, live, width, WIDTH, ACC)
            products = tl.sum(result * rows, 1)
            after = first + CHUNK
            if KIND == "k":
                if after >= end:
                    if ends is not None:
                        grad_after = state_product(ends, state, z, place, KEYS, VALUES, NORMALIZE, ACC)
                elif (after - begin) % KEPT == 0:
                    there = kept + (after // KEPT - 1) * SIZE
                    grad_after = state_product(there, state, z, place, KEYS, VALUES, NORMALIZE, ACC)
                products = tl.where(live, load_numbers(dots, first, live) - products, 0.0)
                last = row == CHUNK - 1
                products += tl.where(last, grad_after, 0.0)
                grads = tl.sum(tl.where(causal & (parted == 0), products[None, :], 0.0), 1)
                grads = tl.where(e == 0.0, 0.0, grads)
                tl.store(grad_decay + first + row, grads, live)
                grad_after = tl.sum(tl.where(row == 0, grads, 0.0), 0)

        if decay is not None:
            added = weakened(of_end[:, None], added)
            z = weakened(total, z)
            if CAREFUL:
                state = weakened(total, state)
                seen_later = live & (of_end != 0.0)
                if NORMALIZE and KIND != "out":
                    factors = load_numbers(inverse, first, seen_later)
                y = load_scaled(
                    *(b, first, b_stride, seen_later, depth, factors, DEPTH, CAST, PRECISION),
                    NORMALIZE and KIND == "k",
                )
                u = load_scaled(
                    *(c, first, c_stride, seen_later, width, factors, WIDTH, CAST, PRECISION),
                    NORMALIZE and KIND == "v",
                )
            else:
                state *= total  # infinities and NaN stay, to be seen after the last row
            y = as_operand(of_end[:, None] * y.to(ACC), CAST, PRECISION)
        state += tl.dot(tl.trans(y), u, input_precision=PRECISION, out_dtype=ACC)
        if NORMALIZE and KIND != "v":
            z += tl.sum(added, 0)
        if dots is not None and KIND == "q":
            tl.store(dots + first + row, products, live)
            if (after < end) & ((after - begin) % KEPT == 0):
                there = kept + (after // KEPT - 1) * SIZE
                tl.store(there + offsets, state, exists)
                if NORMALIZE:
                    tl.store(there + key * (VALUES + 1) + VALUES, z, key < KEYS)

        places = (first + row)[:, None] * out_stride + width[None, :]
        tl.store(out + places, result.to(out.dtype.element_ty), live[:, None] & (width < WIDTH)[None, :])
    return state, z


@triton.jit(do_not_specialize=OF_A_BATCH)
def chunk_scan(
    a,
    a_strides,  # of batch, head and row, and how many heads of q share one of a's; columns are dense
    b,
    b_strides,
    c,
    c_strides,
    out,
    out_strides,
    outputs,  # of the forward pass, which "q" reads with a normaliser
    output_strides,
    entering,  # (batch or sequences, heads, segments) states, or None for zero
    entering_group,  # how many heads share a state
    leaving,  # (batch or sequences, heads) states, or None: not wanted (one segment only)
    leaving_group,
    inverse,  # (batch, heads, rows), with a normaliser; "out" writes it
    slope,  # the same; "q" writes it, "k" reads it
    decay,  # (batch, heads, rows), or None
    decay_of_batch,  # strides
    decay_of_head,
    decay_of_row,
    decay_group,
    dotted,  # q for "q" and k for "k" with decays, for log_decay's gradient, else None; and what follows
    dotted_strides,
    dots,  # (batch, heads, blocks of columns, rows) of q . grad_q; "q" writes it, "k" reads it
    kept,  # (batch, heads, rows / KEPT) states; "q" writes them, "k" reads them
    ends,  # (batch or sequences, heads, segments) last states for "k"; None if their gradients are zero
    grad_decay,  # the parts of log_decay's gradient, as dots
    cu_seqlens,  # (sequences + 1), or None
    heads,
    rows,
    segments,
    segment_rows,
    eps,
    scale,  # of the outputs of "out" without a normaliser
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
    KEPT: tl.constexpr,
):
    REVERSE: tl.constexpr = KIND == "k" or KIND == "v"
    TRANSPOSED: tl.constexpr = KIND == "q" or KIND == "k"
    head, begin, end = segment_of(cu_seqlens, heads, rows, segments, segment_rows, REVERSE, CHUNK)
    batch, of_batch = head // heads, head % heads
    a += offset_of(batch, of_batch, a_strides)
    b += offset_of(batch, of_batch, b_strides)
    c += offset_of(batch, of_batch, c_strides)
    out += offset_of(batch, of_batch, out_strides)
    outputs += offset_of(batch, of_batch, output_strides)
    if NORMALIZE:
        inverse += head * rows
        if slope is not None:
            slope += head * rows
    size = KEYS * (VALUES + NORMALIZE)
    if decay is not None:
        decay += batch * decay_of_batch + of_batch // decay_group * decay_of_head
    if dots is not None:
        dotted += offset_of(batch, of_batch, dotted_strides)
        of_columns = (head * tl.num_programs(1) + tl.program_id(1)) * rows
        dots += of_columns
        grad_decay += of_columns
        kept += head * (rows // KEPT) * size
        if ends is not None:
            program = tl.program_id(0).to(tl.int64)
            ends += (program - program % segments + segments - 1 - program % segments) * size

    depth = tl.arange(0, DEPTH_BLOCK)
    width = tl.program_id(1) * WIDTH_BLOCK + tl.arange(0, WIDTH_BLOCK)
    offsets, exists = state_offsets(depth, width, KEYS, VALUES, NORMALIZE, TRANSPOSED)
    key = depth if KIND == "out" else width  # z has one number for each column of the keys
    state = tl.zeros((DEPTH_BLOCK, WIDTH_BLOCK), ACC)
    z = tl.zeros(key.shape, ACC)
    if entering is not None:
        program = tl.program_id(0).to(tl.int64)
        entering += program // entering_group * size
        state = tl.load(entering + offsets, owned(exists, program, entering_group, REVERSE), 0.0)
        if NORMALIZE and KIND != "v":
            of_z = owned(key < KEYS, program, entering_group, REVERSE)
            z = tl.load(entering + key * (VALUES + 1) + VALUES, of_z, 0.0)

    rows_of_head = (a, a_strides[2], b, b_strides[2], c, c_strides[2], out, out_strides[2])
    others = (outputs, output_strides[2], inverse, slope)
    decays = (decay, decay_of_row, dotted, dotted_strides[2], dots, kept, ends, grad_decay)
    part, place = (begin, end, depth, width), (offsets, exists, key)
    final, final_z = walk(
        *(rows_of_head, others, decays, part, place, state, z, eps, scale),
        *(KIND, KEYS, VALUES, NORMALIZE, CHUNK, CAST, ACC, PRECISION, KEPT, False),
    )
    finite = tl.abs(final) < float("inf")
    if tl.min(tl.min(finite.to(tl.int32), 1), 0) == 0:  # so are some inputs: once more, with small tiles
        final, final_z = walk(
            *(rows_of_head, others, decays, part, place, state, z, eps, scale),
            *(KIND, KEYS, VALUES, NORMALIZE, 16, CAST, ACC, PRECISION, KEPT, True),
        )
    if leaving is not None:
        program = tl.program_id(0).to(tl.int64)
        leaving += program // leaving_group * size
        tl.store(leaving + offsets, final, owned(exists, program, leaving_group, True))
        if NORMALIZE and KIND != "v" and (KIND != "out" or tl.program_id(1) == 0):
            of_z = owned(key < KEYS, program, leaving_group, True)
            tl.store(leaving + key * (VALUES + 1) + VALUES, final_z, of_z)


@triton.jit(do_not_specialize=OF_A_BATCH)
def segment_sums(
    keys,
    key_strides,
    values,
    value_strides,
    sums,  # (batch or sequences, heads, segments) states
    inverse,  # (batch, heads, rows) factors of the values, or None
    slope,  # the same, of z
    decay,  # (batch, heads, rows), or None
    decay_of_batch,  # strides
    decay_of_head,
    decay_of_row,
    decay_group,
    totals,  # (batch or sequences, heads, segments): the decay over each segment, or None
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
    """The sum of keys[j]^T values[j] over each segment, and with a normaliser the sum of the keys.

    With decays each term has those from its row to where the scan leaves the segment.
    """
    head, begin, end = segment_of(cu_seqlens, heads, rows, segments, segment_rows, REVERSE, CHUNK)
    keys += offset_of(head // heads, head % heads, key_strides)
    values += offset_of(head // heads, head % heads, value_strides)
    key = tl.arange(0, KEY_BLOCK)
    value = tl.program_id(1) * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)
    state = tl.zeros((KEY_BLOCK, VALUE_BLOCK), ACC)
    z = tl.zeros((KEY_BLOCK,), ACC)
    factors = tl.zeros((CHUNK,), ACC)
    if decay is not None:
        decay += head // heads * decay_of_batch + head % heads // decay_group * decay_of_head
        of_all = tl.sum(factors, 0) + 1.0
    chunks = tl.cdiv(end - begin, CHUNK)
    for step in range(0, chunks):
        first = begin + (chunks - 1 - step if REVERSE else step) * CHUNK
        live = first + tl.arange(0, CHUNK) < end
        if inverse is not None:
            factors = load_numbers(inverse, head * rows + first, live)
        if decay is not None:
            _, _, of_end, total, _, _ = decays_of(decay, decay_of_row, first, live, REVERSE, True)
            live = live & (of_end != 0.0)  # what no row of later sees may be anything
        x = load_rows(keys, first, key_strides[2], live, key, KEYS, CAST)
        y = load_scaled(
            *(values, first, value_strides[2], live, value, factors, VALUES, CAST, PRECISION),
            inverse is not None,
        )
        added = x.to(ACC)
        if slope is not None:
            added *= load_numbers(slope, head * rows + first, live)[:, None]
        if decay is not None:
            added *= of_end[:, None]
            x = as_operand(of_end[:, None] * x.to(ACC), CAST, PRECISION)
            state, z, of_all = weakened(total, state), weakened(total, z), weakened(total, of_all)
        state += tl.dot(tl.trans(x), y, input_precision=PRECISION, out_dtype=ACC)
        if NORMALIZE:
            z += tl.sum(added, 0)
    sums += tl.program_id(0).to(tl.int64) * KEYS * (VALUES + NORMALIZE)
    offsets, exists = state_offsets(key, value, KEYS, VALUES, NORMALIZE, False)
    tl.store(sums + offsets, state, exists)
    if NORMALIZE and tl.program_id(1) == 0:
        tl.store(sums + key * (VALUES + 1) + VALUES, z, key < KEYS)
    if decay is not None and tl.program_id(1) == 0:
        tl.store(totals + tl.program_id(0), of_all)


@triton.jit(do_not_specialize=["segments"])
def prefix(
    sums,
    totals,
    initial,
    initial_group,
    total,
    total_group,
    segments,
    SIZE: tl.constexpr,
    REVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """In place, each segment's sum to the state that enters it; the last state to `total`, if wanted."""
    head = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = element < SIZE
    state = tl.zeros((BLOCK,), sums.dtype.element_ty)
    if initial is not None:
        of_head = owned(exists, head, initial_group, REVERSE)
        state = tl.load(initial + head // initial_group * SIZE + element, of_head, 0.0)
    for segment in range(0, segments):
        place = sums + (head * segments + segment) * SIZE + element
        added = tl.load(place, exists, 0.0)
        tl.store(place, state, exists)
        if totals is not None:
            state = weakened(tl.load(totals + head * segments + segment), state)
        state += added
    if total is not None:
        of_head = owned(exists, head, total_group, True)
        tl.store(total + head // total_group * SIZE + element, state, of_head)


@triton.jit(do_not_specialize=["heads"])
def step(
    q,
    q_strides,  # of batch and head; columns are dense
    k,
    k_strides,
    v,
    v_strides,
    state,  # (batch, heads), heads as of k
    decay,  # by batch and head, or None
    decay_strides,
    out,  # (batch, heads of q)
    new_state,  # as state
    heads,
    group,  # heads of q for each of k
    eps,
    scale,
    KEYS: tl.constexpr,  # D
    VALUES: tl.constexpr,  # M
    NORMALIZE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    ACC: tl.constexpr,
):
    """One position: a program reads a block of columns of a state once, for all heads of q that share it."""
    program = tl.program_id(0).to(tl.int64)
    batch, head = program // heads, program % heads
    key = tl.arange(0, KEY_BLOCK)
    value = tl.program_id(1) * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)
    offsets, exists = state_offsets(key, value, KEYS, VALUES, NORMALIZE, False)
    of_z, has_key = key * (VALUES + 1) + VALUES, key < KEYS
    state += program * KEYS * (VALUES + NORMALIZE)
    new_state += program * KEYS * (VALUES + NORMALIZE)
    numbers = tl.load(state + offsets, exists, 0.0)
    z = tl.load(state + of_z, has_key, 0.0) if NORMALIZE else tl.zeros((KEY_BLOCK,), ACC)
    if decay is not None:
        e = tl.load(decay + batch * decay_strides[0] + head * decay_strides[1])
        numbers, z = weakened(e, numbers), weakened(e, z)
    keys = tl.load(k + batch * k_strides[0] + head * k_strides[1] + key, has_key, 0.0).to(ACC)
    values = tl.load(v + batch * v_strides[0] + head * v_strides[1] + value, value < VALUES, 0.0).to(ACC)
    numbers += keys[:, None] * values[None, :]
    tl.store(new_state + offsets, numbers, exists)
    if NORMALIZE:
        z += keys
        if tl.program_id(1) == 0:
            tl.store(new_state + of_z, z, has_key)
    for one in range(0, group):
        of_head = q + batch * q_strides[0] + (head * group + one) * q_strides[1]
        query = tl.load(of_head + key, has_key, 0.0).to(ACC)
        found = tl.sum(query[:, None] * numbers, 0)
        if NORMALIZE:
            found = found / (tl.sum(query * z, 0) + eps)
        place = out + (program * group + one) * VALUES + value
        tl.store(place, (found * scale).to(out.dtype.element_ty), value < VALUES)
