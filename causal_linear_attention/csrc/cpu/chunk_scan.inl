// One segment of a scan (see kernels.h), chunk by chunk:
//
//     P = A B^T (lower triangle),  out = P C + A S,  S += B^T C
//
// and for a pair, before S changes, the same with (pair, C, B) and S^T. B is transposed, into a tile of its
// own: both of its products then read it along a chunk; of a pair C and S are, too, which costs less than
// summing S twice. A and C are read where they lie if they already are what the arithmetic needs, else a
// converted copy of the chunk is made. With decays (decays.inl), P, A S and S are weighed where they are in registers,
// and the transposed B between its two products. A chunk's B^T C is summed by itself before it is added to S, which
// keeps the error of a long S small.
// Included inside a namespace of the instruction set, after tiles.inl.

template <class T>
struct Workspace {
  T *state_across, *a, *b, *b_across, *c, *c_across, *out, *pair, *pair_out, *scores, *inverse, *running;

  CLA_INLINE Workspace(T* memory, int64_t depth, int64_t width) {
    auto take = [&memory](int64_t count) {
      T* const start = memory;
      memory += count;
      return start;
    };
    state_across = take(padded_depth(depth) * pitch(width));
    a = take(padded_depth(depth) * kChunk);
    b = take(padded_depth(depth) * kChunk);
    b_across = take(padded_depth(depth) * kChunk);
    c = take(pitch(width) * kChunk);
    c_across = take(pitch(width) * kChunk);
    out = take(pitch(width) * kChunk);
    pair = take(pitch(width) * kChunk);
    pair_out = take(padded_depth(depth) * kChunk);
    scores = take(kChunk * kChunk);
    inverse = take(kChunk);
    running = take(pitch(width));
  }
};

template <class T, class In>
CLA_INLINE void copy_rows_as(const Rows& rows, int64_t first, int64_t count, int64_t columns, T* to,
                             int64_t stride) {
  if (columns == 0) return;  // without memory
  for (int64_t i = 0; i < count; ++i) {
    widen_row(static_cast<const In*>(rows.data) + (first + i) * rows.stride, to + i * stride, columns);
  }
}

// Rows [first, first + count) as T with their factors and extra column; what is missing up to `stride`
// columns and kChunk rows is zero.
template <class T>
CLA_SHARED void copy_rows(const Rows& rows, int64_t first, int64_t count, int64_t columns, T* to,
                          int64_t stride) {
  const int64_t stored = columns - (rows.extra != nullptr);
  if constexpr (sizeof(T) == 8) {
    copy_rows_as<T, double>(rows, first, count, stored, to, stride);
  } else if (rows.dtype == Dtype::f32) {
    copy_rows_as<T, float>(rows, first, count, stored, to, stride);
  } else if (rows.dtype == Dtype::bf16) {
    copy_rows_as<T, bf16>(rows, first, count, stored, to, stride);
  } else {
    copy_rows_as<T, f16>(rows, first, count, stored, to, stride);
  }
  const bool scaled = rows.scale != nullptr || rows.factor != 1;
  if (!scaled && rows.extra == nullptr && columns == stride && count == kChunk) return;
  for (int64_t i = 0; i < count; ++i) {
    T* const row = to + i * stride;
    if (scaled) {
      T factor = static_cast<T>(rows.factor);
      if (rows.scale != nullptr) factor *= static_cast<const T*>(rows.scale)[(first + i) * rows.scale_stride];
      for (int64_t x = 0; x < stored; ++x) row[x] *= factor;
    }
    if (rows.extra != nullptr) {
      row[stored] = static_cast<const T*>(rows.extra)[(first + i) * rows.extra_stride];
    }
    for (int64_t x = columns; x < stride; ++x) row[x] = 0;
  }
  for (int64_t x = count * stride; x < kChunk * stride; ++x) to[x] = 0;
}

// Where the chunk's rows lie as the arithmetic needs them, and at what stride.
template <class T>
struct Chunk {
  const T* data;
  int64_t stride;
};

template <class T>
CLA_INLINE bool usable_in_place(const Rows& rows, int64_t count, int64_t columns, int64_t multiple) {
  return rows.dtype == kDtype<T> && rows.scale == nullptr && rows.factor == 1 && rows.extra == nullptr &&
         count == kChunk && columns > 0 && columns % multiple == 0;
}

template <class T>
CLA_INLINE Chunk<T> chunk_of(const Rows& rows, int64_t first, int64_t count, int64_t columns,
                             int64_t multiple, T* copy) {
  if (usable_in_place<T>(rows, count, columns, multiple)) {
    return {static_cast<const T*>(rows.data) + first * rows.stride, rows.stride};
  }
  copy_rows(rows, first, count, columns, copy, round_up(columns, kMaxLanes));
  return {copy, round_up(columns, kMaxLanes)};
}

// to[x][i] = from[i][x]; `rows` and the columns are rounded up to vectors.
template <class T>
CLA_INLINE void transpose(const Chunk<T>& from, int64_t rows, int64_t columns, T* to, int64_t to_stride) {
  for (int64_t x = 0; x < columns; x += kLanes<T>) {
    for (int64_t i = 0; i < rows; i += kLanes<T>) {
      transpose_square(from.data + i * from.stride + x, from.stride, to + x * to_stride + i, to_stride);
    }
  }
}

CLA_INLINE int64_t element_size(Dtype dtype) {
  return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2;
}

// Rows of the next chunk, inputs and places of outputs, asked for while this one is computed.
struct Prefetch {
  const char* data;
  int64_t row, bytes;
  int64_t left;

  CLA_INLINE Prefetch(const Rows& rows, int64_t first, int64_t columns, int64_t total) {
    const int64_t element = element_size(rows.dtype);
    row = rows.stride * element;
    bytes = columns * element;
    data = static_cast<const char*>(rows.data);
    left = total - first < kChunk ? total - first : kChunk;
    if (data == nullptr) left = 0;  // rows without columns of their own
    if (left > 0) data += first * row;
  }
  CLA_INLINE void next(int64_t count) {
    for (; count > 0 && left > 0; --count, --left, data += row) {
      for (int64_t x = 0; x < bytes; x += 64) __builtin_prefetch(data + x, 0, 2);
    }
  }
};

// scores[i][j] = a[i] . b[j] for j <= i and whatever a vector holds beyond.
template <class T, bool kDecayed>
CLA_INLINE void score_chunk(const Chunk<T>& a, const T* b_across, int64_t rows, int64_t depth,
                            const Decays<T, kDecayed>& decays, T* scores, Prefetch& prefetch) {
  constexpr int R = kMaxRows;
  for (int64_t i = 0; i < rows; i += R) {
    for_columns<T>(i + R < kChunk ? i + R : kChunk, [&](auto columns, int64_t x) {
      Tile<T, R, (decltype(columns)::value > 2 ? 2 : decltype(columns)::value)> tile;
      constexpr int V = decltype(columns)::value > 2 ? 2 : decltype(columns)::value;
      for (int64_t y = x; y < x + decltype(columns)::value * kLanes<T>; y += V * kLanes<T>) {
        tile.zero();
        tile.multiply(a.data + i * a.stride, a.stride, b_across + y, kChunk, depth);
        if constexpr (kDecayed) tile.weigh(decays.within + i * kChunk + y, kChunk);
        tile.write(scores + i * kChunk + y, kChunk);
      }
    });
    prefetch.next(R);
  }
}

// inverse[i] = 1 / (a[i] . (z + sum over j <= i of b[j]) + eps); z gains the chunk's b.
template <class T, bool kDecayed>
CLA_INLINE void normalize_chunk(const Chunk<T>& a, const Chunk<T>& b, int64_t rows, int64_t depth, T eps,
                                const Decays<T, kDecayed>& decays, T* z, T* inverse) {
  T total[kChunk];
  for (int64_t i = 0; i < rows; ++i) total[i] = 0;
  int64_t x = 0;
  Vector<T> partial[kChunk];
  for (int64_t i = 0; i < rows; ++i) partial[i] = Vector<T>{};
  for (; x + kLanes<T> <= depth; x += kLanes<T>) {
    Vector<T> chunk = Vector<T>{};
    const Vector<T> before = load(z + x);
    for (int64_t i = 0; i < rows; ++i) {
      if constexpr (kDecayed) {
        if (i > 0) chunk *= broadcast(decays.within[i * kChunk + i - 1]);
        chunk += load(b.data + i * b.stride + x);
        partial[i] += load(a.data + i * a.stride + x) * (before * broadcast(decays.since_start[i]) + chunk);
      } else {
        chunk += load(b.data + i * b.stride + x);
        partial[i] += load(a.data + i * a.stride + x) * (before + chunk);
      }
    }
    if constexpr (kDecayed) {
      store(z + x, before * broadcast(decays.total) + chunk);
    } else {
      store(z + x, before + chunk);
    }
  }
  for (; x < depth; ++x) {
    T chunk = 0;
    for (int64_t i = 0; i < rows; ++i) {
      T before = z[x];
      if constexpr (kDecayed) {
        if (i > 0) chunk *= decays.within[i * kChunk + i - 1];
        before *= decays.since_start[i];
      }
      chunk += b.data[i * b.stride + x];
      total[i] += a.data[i * a.stride + x] * (before + chunk);
    }
    if constexpr (kDecayed) z[x] *= decays.total;
    z[x] += chunk;
  }
  for (int64_t i = 0; i < rows; ++i) inverse[i] = T(1) / (sum<T>(partial[i]) + total[i] + eps);
}

// out = P C + A S for one block of columns, row i times factors[i].
template <class T, int V, bool kDecayed>
CLA_INLINE void output_columns(const Chunk<T>& a, const Chunk<T>& c, const T* scores, const T* state,
                               int64_t state_stride, int64_t rows, int64_t depth,
                               const Decays<T, kDecayed>& decays, const T* factors, T* out, int64_t out_stride,
                               bool streaming, Prefetch& prefetch) {
  constexpr int R = kTall<V>;
  for (int64_t i = 0; i < rows; i += R) {
    Tile<T, R, V> tile;
    tile.zero();
    tile.multiply(a.data + i * a.stride, a.stride, state, state_stride, depth);
    if constexpr (kDecayed) tile.scale(decays.since_start + i);
    tile.multiply(scores + i * kChunk, kChunk, c.data, c.stride, i);
    tile.multiply_triangle(scores + i * kChunk + i, kChunk, c.data + i * c.stride, c.stride);
    if (factors != nullptr) tile.scale(factors + i);
    if (streaming) {
      tile.write_streaming(out + i * out_stride, out_stride);
    } else {
      tile.write(out + i * out_stride, out_stride);
    }
    prefetch.next(R);
  }
}

// Where the outputs of a chunk go: straight to their place, or by way of a copy if they are converted, cut
// or changed first.
template <class T>
struct Target {
  T* data;
  int64_t stride;
  bool direct, streaming;

  CLA_INLINE Target(char* place, int64_t place_stride, Dtype dtype, bool whole, int64_t columns, T* copy,
                    bool stream) {
    direct = whole && dtype == kDtype<T> && columns > 0 && columns % kLanes<T> == 0;
    data = direct ? reinterpret_cast<T*>(place) : copy;
    stride = direct ? place_stride : round_up(columns, kMaxLanes);
    streaming = direct && stream;
  }
};

// Scores and outputs of a chunk: out = tril(A B^T) C + A S, S: (depth, width).
template <class T, bool kDecayed>
CLA_INLINE void attend_chunk(const Chunk<T>& a, const T* b_across, const Chunk<T>& c, const Chunk<T>& state,
                             int64_t rows, int64_t depth, int64_t width, const Decays<T, kDecayed>& decays,
                             const T* factors, T* scores, const Target<T>& out, Prefetch& first,
                             Prefetch& second) {
  score_chunk(a, b_across, rows, depth, decays, scores, first);
  for_columns<T>(width, [&](auto columns, int64_t x) {
    const Chunk<T> part{c.data + x, c.stride};
    output_columns<T, decltype(columns)::value>(a, part, scores, state.data + x, state.stride, rows, depth,
                                                decays, factors, out.data + x, out.stride, out.streaming,
                                                second);
  });
}

// S += B^T C for one block of columns.
template <class T, int V, bool kDecayed>
CLA_INLINE void update_columns(const T* b_across, const Chunk<T>& c, int64_t rows, int64_t depth,
                               const Decays<T, kDecayed>& decays, T* state, int64_t state_stride,
                               Prefetch& first, Prefetch& second) {
  constexpr int R = kTall<V>;
  for (int64_t e = 0; e < depth; e += R) {
    Tile<T, R, V> tile;
    tile.zero();
    tile.multiply(b_across + e * kChunk, kChunk, c.data, c.stride, rows);
    if constexpr (kDecayed) {
      tile.add_to_scaled(state + e * state_stride, state_stride, decays.total);
    } else {
      tile.add_to(state + e * state_stride, state_stride);
    }
    (first.left > 0 ? first : second).next(R);
  }
}

// The denominator's part in the gradient of q (see Segment::queries); z is the sum of c before the chunk.
template <class T, bool kDecayed>
CLA_INLINE void project_chunk(const Chunk<T>& q, const Chunk<T>& c, int64_t rows, int64_t width,
                              const Decays<T, kDecayed>& decays, const T* z, const T* inverse, T* slope,
                              T* running, T* out, int64_t out_stride) {
  for (int64_t x = 0; x < width; ++x) running[x] = z[x];
  for (int64_t i = 0; i < rows; ++i) {
    const T *const query = q.data + i * q.stride, *const key = c.data + i * c.stride;
    T* const row = out + i * out_stride;
    Vector<T> partial = Vector<T>{};
    T total = 0;
    int64_t x = 0;
    for (; x + kLanes<T> <= width; x += kLanes<T>) partial += load(query + x) * load(row + x);
    for (; x < width; ++x) total += query[x] * row[x];
    slope[i] = -(sum<T>(partial) + total) * inverse[i];
    if constexpr (kDecayed) {
      const T factor = i > 0 ? decays.within[i * kChunk + i - 1] : decays.since_start[0];
      for (x = 0; x < width; ++x) running[x] *= factor;
    }
    for (x = 0; x < width; ++x) {
      running[x] += key[x];
      row[x] += slope[i] * running[x];
    }
  }
}

template <class T>
CLA_INLINE void write_rows(const T* from, int64_t stride, int64_t count, int64_t columns, void* out,
                           int64_t out_stride, Dtype dtype) {
  if (columns == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    const T* const row = from + i * stride;
    const int64_t at = i * out_stride;
    if constexpr (sizeof(T) == 8) {
      narrow_row(row, static_cast<double*>(out) + at, columns);
    } else if (dtype == Dtype::f32) {
      narrow_row(row, static_cast<float*>(out) + at, columns);
    } else if (dtype == Dtype::bf16) {
      narrow_row(row, static_cast<bf16*>(out) + at, columns);
    } else {
      narrow_row(row, static_cast<f16*>(out) + at, columns);
    }
  }
}

CLA_INLINE char* output_row(void* out, int64_t stride, Dtype dtype, int64_t row) {
  return out == nullptr ? nullptr : static_cast<char*>(out) + row * stride * element_size(dtype);
}

// See Segment::dots.
template <class T>
CLA_INLINE void dot_chunk(const Segment& s, int64_t first, int64_t count, const T* out, int64_t stride, T* copy) {
  const Chunk<T> rows = chunk_of(s.dotted, first, count, s.width, 1, copy);
  for (int64_t i = 0; i < count; ++i) {
    const T *const x = rows.data + i * rows.stride, *const y = out + i * stride;
    Vector<T> partial = Vector<T>{};
    T total = 0;
    int64_t column = 0;
    for (; column + kLanes<T> <= s.width; column += kLanes<T>) partial += load(x + column) * load(y + column);
    for (; column < s.width; ++column) total += x[column] * y[column];
    total += sum<T>(partial);
    T* const to = static_cast<T*>(s.dots) + (first + i) * s.direction;
    *to = s.shifted ? *to - total : total;
  }
}

// The outputs of a chunk, from the state before it.
template <class T, bool kDecayed>
CLA_INLINE void outputs_of_chunk(const Segment& s, int64_t first, int64_t count, const Chunk<T>& b,
                                 const Chunk<T>& c, const Decays<T, kDecayed>& decays, T* state,
                                 const Workspace<T>& work, Prefetch& next_a, Prefetch& next_b) {
  const int64_t state_stride = pitch(s.width);
  const Chunk<T> a = chunk_of(s.a, first, count, s.depth, 1, work.a);
  const T factor = static_cast<T>(s.factor);
  const T* factors = nullptr;
  if (s.normalize) {
    T* const z = state + z_offset(s.depth, s.width);
    normalize_chunk(a, b, count, s.depth, static_cast<T>(s.eps), decays, z, work.inverse);
    factors = work.inverse;
    for (int64_t i = 0; i < count; ++i) {
      static_cast<T*>(s.inverse)[first + i] = work.inverse[i];
      work.inverse[i] *= factor;
    }
  } else if (factor != 1) {
    factors = work.inverse;
    for (int64_t i = 0; i < kChunk; ++i) work.inverse[i] = factor;
  }
  char* const place = output_row(s.out, s.out_stride, s.out_dtype, first);
  const bool whole = count == kChunk && s.slope == nullptr;
  const Target<T> out(place, s.out_stride, s.out_dtype, whole, s.width, work.out, s.streaming);
  attend_chunk<T>(a, work.b_across, c, {state, state_stride}, round_up(count, kMaxRows), s.depth, s.width,
                  decays, factors, work.scores, out, next_b, next_a);
  if (s.slope != nullptr) {
    const Chunk<T> q = chunk_of(s.queries, first, count, s.width, 1, work.pair);
    project_chunk(q, c, count, s.width, decays, state + (s.depth - 1) * state_stride,
                  static_cast<const T*>(s.inverse) + first, static_cast<T*>(s.slope) + first, work.running,
                  out.data, out.stride);
  }
  if constexpr (kDecayed) {
    if (s.dots != nullptr) dot_chunk(s, first, count, out.data, out.stride, work.pair);
  }
  if (!out.direct) write_rows(out.data, out.stride, count, s.width, place, s.out_stride, s.out_dtype);
}

// Those of the second of a pair: a, b, c and the state are (pair, c, b) and the state transposed.
template <class T, bool kDecayed>
CLA_INLINE void pair_of_chunk(const Segment& s, int64_t first, int64_t count, const Chunk<T>& b,
                              const Chunk<T>& c, const Decays<T, kDecayed>& decays, const Workspace<T>& work) {
  Prefetch next(s.pair, first + kChunk, s.width, s.rows);
  Prefetch next_out({s.pair_out, s.pair_stride, s.out_dtype}, first + kChunk, s.pair_width,
                    s.pair_streaming ? 0 : s.rows);
  const Chunk<T> a = chunk_of(s.pair, first, count, s.width, 1, work.pair);
  transpose(c, kChunk, s.width, work.c_across, kChunk);
  char* const place = output_row(s.pair_out, s.pair_stride, s.out_dtype, first);
  const Target<T> out(place, s.pair_stride, s.out_dtype, count == kChunk, s.pair_width, work.pair_out,
                      s.pair_streaming);
  attend_chunk<T>(a, work.c_across, b, {work.state_across, padded_depth(s.depth)}, round_up(count, kMaxRows),
                  s.width, s.pair_width, decays, nullptr, work.scores, out, next, next_out);
  if (!out.direct) write_rows(out.data, out.stride, count, s.pair_width, place, s.pair_stride, s.out_dtype);
}

template <class T>
CLA_INLINE void transpose_state(const Segment& s, const T* state, const Workspace<T>& work) {
  transpose<T>({state, pitch(s.width)}, padded_depth(s.depth), s.width, work.state_across,
               padded_depth(s.depth));
}

// Before a chunk: the product of the state with the one that the other scan has kept (see Segment::products).
template <class T>
void multiply_kept(const Segment& s, int64_t first, T factor, const T* state) {
  const int64_t block = (s.rows - first - 1) / kBlockRows, stride = pitch(s.width);
  if (block >= s.blocks) return;
  const T* const kept = static_cast<const T*>(s.kept) + block * state_size(s.depth, s.width);
  double total = 0;
  for (int64_t e = 0; e < s.depth; ++e) {
    T row = 0;
    for (int64_t x = 0; x < s.width; ++x) row += state[e * stride + x] * kept[e * stride + x];
    total += static_cast<double>(row);
  }
  static_cast<T*>(s.products)[block] = factor == 0 ? T(0) : factor * static_cast<T>(total);
}

template <class T>
CLA_INLINE void copy_state(const Segment& s, const T* state, int64_t block) {
  if (block >= s.blocks) return;
  T* const to = static_cast<T*>(s.kept) + block * state_size(s.depth, s.width);
  for (int64_t x = 0; x < s.depth * pitch(s.width); ++x) to[x] = state[x];
}

template <class T, bool kDecayed>
CLA_INLINE void compute_chunk(const Segment& s, int64_t first, int64_t count, Decays<T, kDecayed>& decays,
                              T* state, const Workspace<T>& work) {
  const int64_t state_stride = pitch(s.width), rows = round_up(count, kMaxRows), next = first + kChunk;
  const bool wanted = s.out != nullptr;
  Prefetch next_a(s.a, next, s.depth, wanted ? s.rows : 0);
  Prefetch next_b(s.b, next, s.depth, s.rows), next_c(s.c, next, s.width, s.rows);
  Prefetch next_out({s.out, s.out_stride, s.out_dtype}, next, s.width, wanted && !s.streaming ? s.rows : 0);

  const Chunk<T> b = chunk_of(s.b, first, count, s.depth, kLanes<T>, work.b);
  const Chunk<T> c = chunk_of(s.c, first, count, s.width, kLanes<T>, work.c);
  transpose(b, kChunk, s.depth, work.b_across, kChunk);
  if (wanted) {
    outputs_of_chunk(s, first, count, b, c, decays, state, work, next_a, next_b);
    if (s.pair_out != nullptr) pair_of_chunk(s, first, count, b, c, decays, work);
  } else if (s.normalize) {
    T* const z = state + z_offset(s.depth, s.width);
    for (int64_t x = 0; x < s.depth; ++x) {
      T chunk = 0;
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (kDecayed) {
          if (i > 0) chunk *= decays.within[i * kChunk + i - 1];
        }
        chunk += b.data[i * b.stride + x];
      }
      if constexpr (kDecayed) z[x] *= decays.total;
      z[x] += chunk;
    }
  }
  if constexpr (kDecayed) {
    for (int64_t e = 0; e < s.depth; ++e) {
      T* const column = work.b_across + e * kChunk;
      for (int64_t i = 0; i < kChunk; i += kLanes<T>) {
        store(column + i, load(column + i) * load(decays.to_end + i));
      }
    }
  }
  for_columns<T>(s.width, [&](auto columns, int64_t x) {
    const Chunk<T> part{c.data + x, c.stride};
    update_columns<T, decltype(columns)::value>(work.b_across, part, rows, s.depth, decays, state + x,
                                                state_stride, next_c, next_out);
  });
  if (s.pair_out != nullptr) transpose_state(s, state, work);
}

template <class T, bool kDecayed>
void segment(const Segment& s, T* state, T* memory) {
  const Workspace<T> work(memory, s.depth, s.width);
  Decays<T, kDecayed> decays(s);
  if (s.pair_out != nullptr) transpose_state(s, state, work);
  for (int64_t first = s.begin; first < s.end;) {
    const int64_t count = decays.count(first, s.end - first < kChunk ? s.end - first : kChunk);
    if constexpr (kDecayed) {
      const bool block_begins = s.kept != nullptr && s.shifted && (s.rows - first) % kBlockRows == 0;
      if (s.products != nullptr && (block_begins || first == 0)) multiply_kept(s, first, decays.at(first), state);
    }
    if (decays.of(first, count)) {
      for (int64_t x = 0; x < state_size(s.depth, s.width); ++x) state[x] = 0;
      if (s.pair_out != nullptr) transpose_state(s, state, work);
    }
    compute_chunk(s, first, count, decays, state, work);
    first += count;
    if constexpr (kDecayed) {
      const bool block_ends = first % kBlockRows == 0 || first == s.rows;
      if (s.kept != nullptr && !s.shifted && block_ends) copy_state(s, state, (first - 1) / kBlockRows);
    }
  }
  if (s.streaming || s.pair_streaming) stream_fence();
}
