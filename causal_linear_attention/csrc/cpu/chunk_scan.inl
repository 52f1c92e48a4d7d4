// One segment of a scan (see kernels.h), chunk by chunk:
//
//     P = A B^T (lower triangle),  out = P C + A S,  S += B^T C
//
// and for a pair, before S changes, the same with (pair, C, B) and S^T. B is transposed, into a tile of its
// own: both of its products then read it along a chunk; of a pair C and S are, too, which costs less than
// summing S twice. A and C are read where they lie if they already are what the arithmetic needs, else a
// converted copy of the chunk is made. A chunk's B^T C is summed by itself before it is added to S, which
// keeps the error of a long S small.
// Included inside a namespace of the instruction set, after tiles.inl.

template <class T>
constexpr Dtype kDtype = sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;

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
  for (int64_t i = 0; i < count; ++i) {
    widen_row(static_cast<const In*>(rows.data) + (first + i) * rows.stride, to + i * stride, columns);
  }
}

// Rows [first, first + count) as T with their scale and extra column; what is missing up to `stride`
// columns and kChunk rows is zero.
template <class T>
__attribute__((noinline)) void copy_rows(const Rows& rows, int64_t first, int64_t count, int64_t columns,
                                         T* to, int64_t stride) {
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
  if (rows.scale == nullptr && rows.extra == nullptr && columns == stride && count == kChunk) return;
  for (int64_t i = 0; i < count; ++i) {
    T* const row = to + i * stride;
    if (rows.scale != nullptr) {
      const T factor = static_cast<const T*>(rows.scale)[(first + i) * rows.scale_stride];
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
  return rows.dtype == kDtype<T> && rows.scale == nullptr && rows.extra == nullptr && count == kChunk &&
         columns % multiple == 0;
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
template <class T>
CLA_INLINE void score_chunk(const Chunk<T>& a, const T* b_across, int64_t rows, int64_t depth, T* scores,
                            Prefetch& prefetch) {
  constexpr int R = kMaxRows;
  for (int64_t i = 0; i < rows; i += R) {
    for_columns<T>(i + R < kChunk ? i + R : kChunk, [&](auto columns, int64_t x) {
      Tile<T, R, (decltype(columns)::value > 2 ? 2 : decltype(columns)::value)> tile;
      constexpr int V = decltype(columns)::value > 2 ? 2 : decltype(columns)::value;
      for (int64_t y = x; y < x + decltype(columns)::value * kLanes<T>; y += V * kLanes<T>) {
        tile.zero();
        tile.multiply(a.data + i * a.stride, a.stride, b_across + y, kChunk, depth);
        tile.write(scores + i * kChunk + y, kChunk);
      }
    });
    prefetch.next(R);
  }
}

// inverse[i] = 1 / (a[i] . (z + sum over j <= i of b[j]) + eps); z gains the chunk's b.
template <class T>
CLA_INLINE void normalize_chunk(const Chunk<T>& a, const Chunk<T>& b, int64_t rows, int64_t depth, T eps,
                                T* z, T* inverse) {
  T total[kChunk];
  for (int64_t i = 0; i < rows; ++i) total[i] = 0;
  int64_t x = 0;
  Vector<T> partial[kChunk];
  for (int64_t i = 0; i < rows; ++i) partial[i] = Vector<T>{};
  for (; x + kLanes<T> <= depth; x += kLanes<T>) {
    Vector<T> chunk = Vector<T>{};
    const Vector<T> before = load(z + x);
    for (int64_t i = 0; i < rows; ++i) {
      chunk += load(b.data + i * b.stride + x);
      partial[i] += load(a.data + i * a.stride + x) * (before + chunk);
    }
    store(z + x, before + chunk);
  }
  for (; x < depth; ++x) {
    T chunk = 0;
    for (int64_t i = 0; i < rows; ++i) {
      chunk += b.data[i * b.stride + x];
      total[i] += a.data[i * a.stride + x] * (z[x] + chunk);
    }
    z[x] += chunk;
  }
  for (int64_t i = 0; i < rows; ++i) inverse[i] = T(1) / (sum<T>(partial[i]) + total[i] + eps);
}

// out = P C + A S for one block of columns.
template <class T, int V>
CLA_INLINE void output_columns(const Chunk<T>& a, const Chunk<T>& c, const T* scores, const T* state,
                               int64_t state_stride, int64_t rows, int64_t depth, const T* inverse, T* out,
                               int64_t out_stride, bool streaming, Prefetch& prefetch) {
  constexpr int R = kTall<V>;
  for (int64_t i = 0; i < rows; i += R) {
    Tile<T, R, V> tile;
    tile.zero();
    tile.multiply(a.data + i * a.stride, a.stride, state, state_stride, depth);
    tile.multiply(scores + i * kChunk, kChunk, c.data, c.stride, i);
    tile.multiply_triangle(scores + i * kChunk + i, kChunk, c.data + i * c.stride, c.stride);
    if (inverse != nullptr) tile.scale(inverse + i);
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
    direct = whole && dtype == kDtype<T> && columns % kLanes<T> == 0;
    data = direct ? reinterpret_cast<T*>(place) : copy;
    stride = direct ? place_stride : round_up(columns, kMaxLanes);
    streaming = direct && stream;
  }
};

// Scores and outputs of a chunk: out = tril(A B^T) C + A S, S: (depth, width).
template <class T>
CLA_INLINE void attend_chunk(const Chunk<T>& a, const T* b_across, const Chunk<T>& c, const Chunk<T>& state,
                             int64_t rows, int64_t depth, int64_t width, const T* inverse, T* scores,
                             const Target<T>& out, Prefetch& first, Prefetch& second) {
  score_chunk(a, b_across, rows, depth, scores, first);
  for_columns<T>(width, [&](auto columns, int64_t x) {
    const Chunk<T> part{c.data + x, c.stride};
    output_columns<T, decltype(columns)::value>(a, part, scores, state.data + x, state.stride, rows, depth,
                                                inverse, out.data + x, out.stride, out.streaming, second);
  });
}

// S += B^T C for one block of columns.
template <class T, int V>
CLA_INLINE void update_columns(const T* b_across, const Chunk<T>& c, int64_t rows, int64_t depth, T* state,
                               int64_t state_stride, Prefetch& first, Prefetch& second) {
  constexpr int R = kTall<V>;
  for (int64_t e = 0; e < depth; e += R) {
    Tile<T, R, V> tile;
    tile.zero();
    tile.multiply(b_across + e * kChunk, kChunk, c.data, c.stride, rows);
    tile.add_to(state + e * state_stride, state_stride);
    (first.left > 0 ? first : second).next(R);
  }
}

// The denominator's part in the gradient of q (see Segment::queries); z is the sum of c before the chunk.
template <class T>
CLA_INLINE void project_chunk(const Chunk<T>& q, const Chunk<T>& c, int64_t rows, int64_t width, const T* z,
                              const T* inverse, T* slope, T* running, T* out, int64_t out_stride) {
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
    for (x = 0; x < width; ++x) {
      running[x] += key[x];
      row[x] += slope[i] * running[x];
    }
  }
}

template <class T>
CLA_INLINE void write_rows(const T* from, int64_t stride, int64_t count, int64_t columns, void* out,
                           int64_t out_stride, Dtype dtype) {
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
  return static_cast<char*>(out) + row * stride * element_size(dtype);
}

// The outputs of a chunk, from the state before it.
template <class T>
CLA_INLINE void outputs_of_chunk(const Segment& s, int64_t first, int64_t count, const Chunk<T>& b,
                                 const Chunk<T>& c, T* state, const Workspace<T>& work, Prefetch& next_a,
                                 Prefetch& next_b) {
  const int64_t state_stride = pitch(s.width);
  const Chunk<T> a = chunk_of(s.a, first, count, s.depth, 1, work.a);
  const T* inverse = nullptr;
  if (s.normalize) {
    T* const z = state + z_offset(s.depth, s.width);
    normalize_chunk(a, b, count, s.depth, static_cast<T>(s.eps), z, work.inverse);
    inverse = work.inverse;
    for (int64_t i = 0; i < count; ++i) static_cast<T*>(s.inverse)[first + i] = inverse[i];
  }
  char* const place = output_row(s.out, s.out_stride, s.out_dtype, first);
  const bool whole = count == kChunk && s.slope == nullptr;
  const Target<T> out(place, s.out_stride, s.out_dtype, whole, s.width, work.out, s.streaming);
  attend_chunk<T>(a, work.b_across, c, {state, state_stride}, round_up(count, kMaxRows), s.depth, s.width,
                  inverse, work.scores, out, next_b, next_a);
  if (s.slope != nullptr) {
    const Chunk<T> q = chunk_of(s.queries, first, count, s.width, 1, work.pair);
    project_chunk(q, c, count, s.width, state + (s.depth - 1) * state_stride,
                  static_cast<const T*>(s.inverse) + first, static_cast<T*>(s.slope) + first, work.running,
                  out.data, out.stride);
  }
  if (!out.direct) write_rows(out.data, out.stride, count, s.width, place, s.out_stride, s.out_dtype);
}

// Those of the second of a pair: a, b, c and the state are (pair, c, b) and the state transposed.
template <class T>
CLA_INLINE void pair_of_chunk(const Segment& s, int64_t first, int64_t count, const Chunk<T>& b,
                              const Chunk<T>& c, const Workspace<T>& work) {
  Prefetch next(s.pair, first + kChunk, s.width, s.rows);
  Prefetch next_out({s.pair_out, s.pair_stride, s.out_dtype}, first + kChunk, s.pair_width,
                    s.pair_streaming ? 0 : s.rows);
  const Chunk<T> a = chunk_of(s.pair, first, count, s.width, 1, work.pair);
  transpose(c, kChunk, s.width, work.c_across, kChunk);
  char* const place = output_row(s.pair_out, s.pair_stride, s.out_dtype, first);
  const Target<T> out(place, s.pair_stride, s.out_dtype, count == kChunk, s.pair_width, work.pair_out,
                      s.pair_streaming);
  attend_chunk<T>(a, work.c_across, b, {work.state_across, padded_depth(s.depth)}, round_up(count, kMaxRows),
                  s.width, s.pair_width, nullptr, work.scores, out, next, next_out);
  if (!out.direct) write_rows(out.data, out.stride, count, s.pair_width, place, s.pair_stride, s.out_dtype);
}

template <class T>
CLA_INLINE void transpose_state(const Segment& s, const T* state, const Workspace<T>& work) {
  transpose<T>({state, pitch(s.width)}, padded_depth(s.depth), s.width, work.state_across,
               padded_depth(s.depth));
}

template <class T>
CLA_INLINE void compute_chunk(const Segment& s, int64_t first, int64_t count, T* state,
                              const Workspace<T>& work) {
  const int64_t state_stride = pitch(s.width), rows = round_up(count, kMaxRows), next = first + kChunk;
  const bool wanted = s.out != nullptr;
  Prefetch next_a(s.a, next, s.depth, wanted ? s.rows : 0);
  Prefetch next_b(s.b, next, s.depth, s.rows), next_c(s.c, next, s.width, s.rows);
  Prefetch next_out({s.out, s.out_stride, s.out_dtype}, next, s.width, wanted && !s.streaming ? s.rows : 0);

  const Chunk<T> b = chunk_of(s.b, first, count, s.depth, kLanes<T>, work.b);
  const Chunk<T> c = chunk_of(s.c, first, count, s.width, kLanes<T>, work.c);
  transpose(b, kChunk, s.depth, work.b_across, kChunk);
  if (wanted) {
    outputs_of_chunk(s, first, count, b, c, state, work, next_a, next_b);
    if (s.pair_out != nullptr) pair_of_chunk(s, first, count, b, c, work);
  } else if (s.normalize) {
    T* const z = state + z_offset(s.depth, s.width);
    for (int64_t x = 0; x < s.depth; ++x) {
      T chunk = 0;
      for (int64_t i = 0; i < count; ++i) chunk += b.data[i * b.stride + x];
      z[x] += chunk;
    }
  }
  for_columns<T>(s.width, [&](auto columns, int64_t x) {
    const Chunk<T> part{c.data + x, c.stride};
    update_columns<T, decltype(columns)::value>(work.b_across, part, rows, s.depth, state + x, state_stride,
                                                next_c, next_out);
  });
  if (s.pair_out != nullptr) transpose_state(s, state, work);
}

template <class T>
void segment(const Segment& s, T* state, T* memory) {
  const Workspace<T> work(memory, s.depth, s.width);
  if (s.pair_out != nullptr) transpose_state(s, state, work);
  for (int64_t first = s.begin; first < s.end; first += kChunk) {
    const int64_t count = s.end - first < kChunk ? s.end - first : kChunk;
    compute_chunk(s, first, count, state, work);
  }
  if (s.streaming || s.pair_streaming) stream_fence();
}
