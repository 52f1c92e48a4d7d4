// The steps of fused.h for a range of rows, positions or blocks. Included inside a namespace of the instruction set.

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

// A row as numbers of the accumulation type: itself, or a copy.
template <class T, class In>
CLA_INLINE const T* wide(const In* row, T* copy, int64_t count) {
  if constexpr (kSame<T, In>) {
    return row;
  } else {
    widen_row(row, copy, count);
    return copy;
  }
}
// Where to make a row, and how it gets to its place.
template <class T, class In>
CLA_INLINE T* place(In* row, T* copy) {
  if constexpr (kSame<T, In>) {
    return row;
  } else {
    return copy;
  }
}
template <class T, class In>
CLA_INLINE void put(const T* copy, In* row, int64_t count) {
  if constexpr (!kSame<T, In>) narrow_row(copy, row, count);
}

template <class T>
CLA_INLINE T dot(const T* a, const T* b, int64_t count) {
  constexpr int L = kLanes<T>;
  Vector<T> first = Vector<T>{}, second = Vector<T>{};
  int64_t i = 0;
  for (; i + 2 * L <= count; i += 2 * L) {
    first += load(a + i) * load(b + i);
    second += load(a + i + L) * load(b + i + L);
  }
  for (; i + L <= count; i += L) first += load(a + i) * load(b + i);
  T total = sum<T>(first + second);
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
}

// exp(x) = scale (1 + rest), so that exp(x) - 1 = scale rest + (scale - 1) keeps its precision near zero.
CLA_INLINE void exponential(float x, float* scale, float* rest) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // rounds to an integer, in the lowest bits
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float tail = 0.5f + r * (0.16666667f + r * (0.041666642f + r * (0.0083333310f + r * 0.0013981999f)));
  *rest = r + r * r * tail;
  *scale = bits_to_float((float_to_bits(shifted) << 23) + 0x3f800000u);
}
CLA_INLINE void exponential(double x, double* scale, double* rest) {
  *scale = 1;
  *rest = __builtin_expm1(x);
}

// --- dropout ---------------------------------------------------------------------------------------------

struct Words {
  uint32_t x[4][16];
};

// One round of 16 counters.
CLA_INLINE void philox_round(Words& w, uint32_t key0, uint32_t key1) {
  for (int i = 0; i < 16; ++i) {
    const uint64_t p = static_cast<uint64_t>(w.x[0][i]) * kPhiloxFactor0;
    const uint64_t q = static_cast<uint64_t>(w.x[2][i]) * kPhiloxFactor1;
    w.x[0][i] = static_cast<uint32_t>(q >> 32) ^ w.x[1][i] ^ key0;
    w.x[1][i] = static_cast<uint32_t>(q);
    w.x[2][i] = static_cast<uint32_t>(p >> 32) ^ w.x[3][i] ^ key1;
    w.x[3][i] = static_cast<uint32_t>(p);
  }
}

// factors[column] = scale or 0, up to a multiple of 64 columns.
template <class T>
CLA_INLINE void dropout_row(const Dropout& d, int64_t row, int64_t width, T* factors) {
  const uint64_t seed = static_cast<uint64_t>(*d.seed), index = static_cast<uint64_t>(row);
  const T scale = static_cast<T>(d.scale);
  for (int64_t start = 0; start < width; start += 64) {
    Words w;
    for (int i = 0; i < 16; ++i) {
      w.x[0][i] = static_cast<uint32_t>(start / 4 + i);
      w.x[1][i] = static_cast<uint32_t>(index);
      w.x[2][i] = static_cast<uint32_t>(index >> 32);
      w.x[3][i] = 0;
    }
    uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      philox_round(w, key0, key1);
      key0 += kPhiloxKey0;
      key1 += kPhiloxKey1;
    }
    const uint32_t* const words = &w.x[0][0];
    for (int i = 0; i < 64; ++i) factors[start + i] = words[i] >= d.threshold ? scale : T(0);
  }
}

// --- residual and norm -----------------------------------------------------------------------------------

template <class T, class In>
void residual_rows(const Residual& s, int64_t first, int64_t last, T* scratch) {
  const int64_t width = s.width, room = round_up(width, 64);
  T *const copy = scratch, *const other = scratch + room, *const made = scratch + 2 * room,
    *const factors = scratch + 3 * room;
  const T share = static_cast<T>(1) / static_cast<T>(width), eps = static_cast<T>(s.eps);
  for (int64_t row = first; row < last; ++row) {
    const T* total = wide<T>(static_cast<const In*>(s.x) + row * width, copy, width);
    if (s.y != nullptr) {
      const T* const y = wide<T>(static_cast<const In*>(s.y) + row * width, other, width);
      In* const to = s.sum != nullptr ? static_cast<In*>(s.sum) + row * width : nullptr;
      T* const sum = to != nullptr ? place(to, made) : made;
      if (s.dropout.seed != nullptr) {
        dropout_row(s.dropout, row, width, factors);
        for (int64_t i = 0; i < width; ++i) sum[i] = total[i] + y[i] * factors[i];
      } else {
        for (int64_t i = 0; i < width; ++i) sum[i] = total[i] + y[i];
      }
      if constexpr (!kSame<T, In>) {  // the norm is that of the sum as it is stored
        In* const stored = to != nullptr ? to : reinterpret_cast<In*>(other);
        narrow_row(sum, stored, width);
        widen_row(stored, sum, width);
      }
      total = sum;
    }
    if (s.out == nullptr) continue;
    In* const out = static_cast<In*>(s.out) + row * width;
    T* const normed = place(out, made);
    const T root = static_cast<T>(__builtin_sqrt(static_cast<double>(dot(total, total, width) * share)));
    const T inverse = static_cast<T>(1) / (root + eps);
    for (int64_t i = 0; i < width; ++i) normed[i] = total[i] * inverse;
    put(normed, out, width);
    static_cast<T*>(s.root)[row] = root;
  }
}

template <class T, class In>
void residual_gradient_rows(const ResidualGradient& s, int64_t first, int64_t last, T* scratch) {
  const int64_t width = s.width, room = round_up(width, 64);
  T *const grads = scratch, *const outs = scratch + room, *const sums = scratch + 2 * room,
    *const factors = scratch + 3 * room;
  const T share = static_cast<T>(1) / static_cast<T>(width), eps = static_cast<T>(s.eps);
  for (int64_t row = first; row < last; ++row) {
    In* const to = static_cast<In*>(s.grad_x) + row * width;
    T* const grad_x = place(to, grads);
    const T* before = nullptr;
    if (s.grad_sum != nullptr) before = wide<T>(static_cast<const In*>(s.grad_sum) + row * width, sums, width);
    if (s.grad_out != nullptr) {
      const T* const grad = wide<T>(static_cast<const In*>(s.grad_out) + row * width, grads, width);
      const T* const out = wide<T>(static_cast<const In*>(s.out) + row * width, outs, width);
      const T root = static_cast<const T*>(s.root)[row], scale = root + eps;
      const bool none = kSame<In, f16> && root == 0;
      const T inverse = none ? T(0) : static_cast<T>(1) / scale;
      const T along = root > 0 ? dot(grad, out, width) * share * (scale / root) : T(0);
      if (before != nullptr) {
        for (int64_t i = 0; i < width; ++i) grad_x[i] = before[i] + (grad[i] - out[i] * along) * inverse;
      } else {
        for (int64_t i = 0; i < width; ++i) grad_x[i] = (grad[i] - out[i] * along) * inverse;
      }
    } else {
      for (int64_t i = 0; i < width; ++i) grad_x[i] = before[i];
    }
    if (s.grad_y != nullptr) {
      In* const to_y = static_cast<In*>(s.grad_y) + row * width;
      T* const grad_y = place(to_y, outs);
      dropout_row(s.dropout, row, width, factors);
      for (int64_t i = 0; i < width; ++i) grad_y[i] = grad_x[i] * factors[i];
      put(grad_y, to_y, width);
    }
    put(grad_x, to, width);
  }
}

// --- gated unit ------------------------------------------------------------------------------------------

template <class T>
CLA_INLINE T logistic(T x) {
  T scale, rest;
  exponential(-x, &scale, &rest);
  return static_cast<T>(1) / (static_cast<T>(1) + (scale + scale * rest));
}

template <class T, class In>
void gated_rows(const Gated& s, int64_t first, int64_t last, T* scratch) {
  const int64_t width = s.width;
  T *const copy = scratch, *const made = scratch + 2 * width;
  for (int64_t row = first; row < last; ++row) {
    const T* const gate = wide<T>(static_cast<const In*>(s.inputs) + row * s.stride, copy, 2 * width);
    const T* const value = gate + width;
    In* const to = static_cast<In*>(s.out) + row * width;
    T* const out = place(to, made);
    for (int64_t i = 0; i < width; ++i) out[i] = gate[i] * logistic(gate[i]) * value[i];
    put(out, to, width);
  }
}

template <class T, class In>
void gated_gradient_rows(const GatedGradient& s, int64_t first, int64_t last, T* scratch) {
  const int64_t width = s.width;
  T *const copy = scratch, *const given = scratch + 2 * width, *const made = scratch + 3 * width,
    *const grads = scratch + 4 * width;
  for (int64_t row = first; row < last; ++row) {
    const T* const gate = wide<T>(static_cast<const In*>(s.inputs) + row * s.stride, copy, 2 * width);
    const T* const value = gate + width;
    const T* const grad = wide<T>(static_cast<const In*>(s.grad) + row * s.grad_stride, given, width);
    In *const to = static_cast<In*>(s.out) + row * width,
       *const to_grad = static_cast<In*>(s.grad_inputs) + row * s.grad_inputs_stride;
    T *const out = place(to, made), *const grad_gate = place(to_grad, grads), *const grad_value = grad_gate + width;
#pragma GCC ivdep  // no two of the rows overlap, which takes too many questions to find out
    for (int64_t i = 0; i < width; ++i) {
      const T share = logistic(gate[i]), active = gate[i] * share;
      out[i] = active * value[i];
      grad_gate[i] = grad[i] * value[i] * share * (1 + gate[i] * (1 - share));
      grad_value[i] = grad[i] * active;
    }
    put(out, to, width);
    put(grad_gate, to_grad, 2 * width);
  }
}

// --- LRPE --------------------------------------------------------------------------------------------------

// Channels 2j and 2j + 1 exchanged.
template <class T, int... I>
CLA_INLINE Vector<T> swapped(Vector<T> x, Lanes<I...>) {
  return shuffle<T, (I ^ 1)...>(x, x);
}

// y turned by the angles of a row of the table, or turned back: `turns` are cosines, then sines with the signs of
// the channels that they go to; all of `room` numbers, a multiple of vectors.
template <class T, bool kBack>
CLA_INLINE void rotate(const T* y, const T* turns, int64_t room, T* to) {
  for (int64_t i = 0; i < room; i += kLanes<T>) {
    const Vector<T> x = load(y + i), other = swapped<T>(x, typename CountLanes<kLanes<T>>::type{});
    const Vector<T> part = other * load(turns + room + i);
    store(to + i, kBack ? x * load(turns + i) - part : x * load(turns + i) + part);
  }
}

template <class T>
CLA_INLINE void reflect(const T* x, const T* direction, T scale, int64_t room, T* to) {
  const Vector<T> along = broadcast(2 * dot(x, direction, room)), factor = broadcast(scale);
  for (int64_t i = 0; i < room; i += kLanes<T>) {
    store(to + i, (load(x + i) - along * load(direction + i)) * factor);
  }
}

template <class T>
CLA_INLINE void apply_map(Map map, const T* x, int64_t room, T* to) {
  if (map == Map::none) {
    for (int64_t i = 0; i < room; ++i) to[i] = x[i];
  } else if (map == Map::elu) {
    for (int64_t i = 0; i < room; ++i) {
      T scale, rest;
      exponential(x[i] > 0 ? T(0) : x[i], &scale, &rest);
      to[i] = x[i] > 0 ? x[i] : scale * rest + (scale - 1);
    }
  } else {
    for (int64_t i = 0; i < room; ++i) {
      T scale, rest;
      exponential(x[i] > 0 ? T(0) : x[i], &scale, &rest);
      to[i] = x[i] > 0 ? 1 + x[i] : scale + scale * rest;
    }
  }
}

template <class T>
CLA_INLINE void apply_slope(Map map, const T* x, int64_t count, T* grad) {
  if (map == Map::none) return;
  for (int64_t i = 0; i < count; ++i) {
    T scale, rest;
    exponential(x[i] > 0 ? T(0) : x[i], &scale, &rest);
    grad[i] *= scale + scale * rest;
  }
}

// A row of `dim` numbers with zeros behind it up to `room`.
template <class T, class In>
CLA_INLINE void padded(const In* from, int64_t dim, int64_t room, T* to) {
  widen_row(from, to, dim);
  for (int64_t i = dim; i < room; ++i) to[i] = 0;
}

template <class T>
CLA_INLINE void copy_row(const T* from, T* to, int64_t count) {
  __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

// Of a row of qkv (length, batch, 3, heads, dim): its query, key or value of one head.
template <class In>
CLA_INLINE In* in_joined(const Joined& x, In* data, int64_t position, int64_t b, int64_t which, int64_t head) {
  return data + (((position * x.batch + b) * 3 + which) * x.heads + head) * x.dim;
}

// One row forward: `x` (room) becomes `out` by way of `scratch`, each of `room` numbers.
template <class T>
CLA_SHARED void turn_row(const Turns<T>& turns, Map map, int64_t place, const T* x, T* scratch, T* out) {
  const int64_t room = turns.room;
  apply_map(map, x, room, turns.direction != nullptr ? scratch : out);
  if (turns.direction == nullptr) {
    for (int64_t i = 0; i < room; ++i) out[i] *= turns.scale;
    return;
  }
  reflect(scratch, turns.direction, turns.scale, room, out);
  rotate<T, false>(out, turns.table + place * 2 * room, room, out);
}

// And back: the gradient `grad` of `out` becomes that of `x`; `angles` gains what theta's gradient is made of.
template <class T>
CLA_INLINE void turn_row_back(const Turns<T>& turns, Map map, int64_t place, const T* x, const T* out, T* grad,
                              T* angles) {
  const int64_t room = turns.room;
  if (turns.direction != nullptr) {
    if (angles != nullptr) {
      for (int64_t i = 0; i < room; i += kLanes<T>) {
        const Vector<T> other = swapped<T>(load(grad + i), typename CountLanes<kLanes<T>>::type{});
        store(angles + i, load(angles + i) + load(out + i) * other);
      }
    }
    rotate<T, true>(grad, turns.table + place * 2 * room, room, grad);
    reflect(grad, turns.direction, turns.scale, room, grad);
  } else {
    for (int64_t i = 0; i < room; ++i) grad[i] *= turns.scale;
  }
  apply_slope(map, x, turns.dim, grad);
}

// theta's gradient: the derivative of a turned pair (a, b) by its angle is (-b, a).
template <class T>
CLA_INLINE void add_angles(const T* angles, double position, int64_t dim, double* total) {
  for (int64_t j = 0; j < dim / 2; ++j) {
    total[j] += position * (static_cast<double>(angles[2 * j]) - static_cast<double>(angles[2 * j + 1]));
  }
}

template <class T, class In>
void features_rows(const Features& s, const Turns<T>& turns, int64_t first, int64_t last, T* scratch) {
  const Joined& x = s.inputs;
  const int64_t room = turns.room, dim = x.dim;
  T *const row = scratch, *const mapped = scratch + room, *const out = scratch + 2 * room;
  for (int64_t position = first; position < last; ++position) {
    for (int64_t b = 0; b < x.batch; ++b) {
      for (int64_t which = 0; which < 2; ++which) {
        In* const to = static_cast<In*>(which == 0 ? s.q : s.k);
        for (int64_t head = 0; head < x.heads; ++head) {
          padded(in_joined(x, static_cast<const In*>(x.qkv), position, b, which, head), dim, room, row);
          turn_row(turns, s.map, position, row, mapped, out);
          narrow_row(out, to + ((b * x.heads + head) * x.length + position) * dim, dim);
        }
      }
    }
  }
}

template <class T, class In>
void features_gradient_rows(const FeaturesGradient& s, const Turns<T>& turns, int64_t first, int64_t last,
                            T* scratch, double* theta) {
  const Joined& x = s.inputs;
  const int64_t room = turns.room, dim = x.dim;
  T *const row = scratch, *const mapped = scratch + room, *const out = scratch + 2 * room,
    *const grad = scratch + 3 * room, *const angles = theta != nullptr ? scratch + 4 * room : nullptr;
  In* const to = static_cast<In*>(s.grad_qkv);
  for (int64_t position = first; position < last; ++position) {
    for (int64_t i = 0; angles != nullptr && i < room; ++i) angles[i] = 0;
    for (int64_t b = 0; b < x.batch; ++b) {
      for (int64_t which = 0; which < 3; ++which) {
        const Array& given = which == 0 ? s.grad_q : which == 1 ? s.grad_k : s.grad_v;
        for (int64_t head = 0; head < x.heads; ++head) {
          const In* const from =
              static_cast<const In*>(given.data) + b * given.batch + head * given.head + position * given.row;
          In* const at = in_joined(x, to, position, b, which, head);
          if (which == 2) {
            copy_row(from, at, dim);
            continue;
          }
          padded(in_joined(x, static_cast<const In*>(x.qkv), position, b, which, head), dim, room, row);
          padded(from, dim, room, grad);
          if (angles != nullptr) turn_row(turns, s.map, position, row, mapped, out);
          turn_row_back(turns, s.map, position, row, out, grad, angles);
          narrow_row(grad, at, dim);
        }
      }
    }
    if (angles != nullptr) add_angles(angles, static_cast<double>(position), dim, theta);
  }
}

// --- blocks ------------------------------------------------------------------------------------------------

// c = a b for `rows` rows of `columns` columns, both rounded up to what a tile holds. kShape: which of the products'
// depth counts: all of `depth`; `lower`: of row i what is up to i; `upper`: what is from i on.
enum class Shape { full, lower, upper };

template <class T, Shape kShape>
CLA_SHARED void product(const T* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t rows, int64_t columns,
                        int64_t depth, T* c, int64_t c_stride) {
  for_columns<T>(columns, [&](auto count, int64_t x) {
    constexpr int V = decltype(count)::value, R = kTall<V>;
    for (int64_t i = 0; i < rows; i += R) {
      Tile<T, R, V> tile;
      tile.zero();
      if constexpr (kShape == Shape::lower) {
        tile.multiply(a + i * a_stride, a_stride, b + x, b_stride, i);
        tile.multiply_triangle(a + i * a_stride + i, a_stride, b + i * b_stride + x, b_stride);
      } else {
        const int64_t from = kShape == Shape::upper ? i : 0;
        if (from < depth) {
          tile.multiply(a + i * a_stride + from, a_stride, b + from * b_stride + x, b_stride, depth - from);
        }
      }
      tile.write(c + i * c_stride + x, c_stride);
    }
  });
}

// c[i][j] = a[i] . b[j] of which, if `causal`, only j <= i is wanted; b_across: (dim, room of b).
template <class T>
CLA_SHARED void scores_of(const T* a, int64_t stride, const T* b_across, int64_t size, int64_t depth, bool causal,
                          T* c) {
  const int64_t room = round_up(size, kMaxLanes);
  for_columns<T>(size, [&](auto count, int64_t x) {
    constexpr int V = decltype(count)::value, R = kTall<V>;
    for (int64_t i = causal ? x / R * R : 0; i < size; i += R) {
      Tile<T, R, V> tile;
      tile.zero();
      tile.multiply(a + i * stride, stride, b_across + x, room, depth);
      tile.write(c + i * room + x, room);
    }
  });
}

template <class T>
CLA_SHARED void across(const T* from, int64_t from_stride, int64_t rows, int64_t columns, T* to, int64_t to_stride) {
  for (int64_t x = 0; x < columns; x += kLanes<T>) {
    for (int64_t i = 0; i < rows; i += kLanes<T>) {
      transpose_square(from + i * from_stride + x, from_stride, to + x * to_stride + i, to_stride);
    }
  }
}

template <class T>
CLA_INLINE T highest(const T* x, int64_t count) {
  constexpr int L = kLanes<T>;
  T top = x[0];
  int64_t i = 0;
  if (count >= L) {
    Vector<T> most = load(x);
    for (i = L; i + L <= count; i += L) {
      const Vector<T> next = load(x + i);
      most = next > most ? next : most;
    }
    for (int lane = 0; lane < L; ++lane) top = most[lane] > top ? most[lane] : top;
  }
  for (; i < count; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// What the passes over a block work with. Arrays have `room` rows of `room` or `columns` numbers.
template <class T>
struct BlockScratch {
  int64_t size, room, columns;
  T *q, *k, *v, *raw, *mapped, *across_k, *weights;                          // forward
  T *grad, *across_v, *slopes, *turned, *grad_q, *grad_k, *grad_v, *angles, *factors;  // backward

  CLA_INLINE BlockScratch(int64_t size_, int64_t dim, T* memory)
      : size(size_), room(round_up(size_, kMaxLanes)), columns(round_up(dim, kMaxLanes)) {
    const int64_t rows = room * columns, square = room * room;
    q = memory;
    k = q + rows;
    v = k + rows;
    across_k = v + rows;
    grad = across_k + rows;
    across_v = grad + rows;
    grad_q = across_v + rows;
    grad_k = grad_q + rows;
    grad_v = grad_k + rows;
    weights = grad_v + rows;
    slopes = weights + square;
    turned = slopes + square;
    factors = turned + square;
    raw = factors + round_up(room, 64);
    mapped = raw + columns;
    angles = mapped + columns;
  }
};

// The rows of one head's block, turned; those past the end are zero.
template <class T, class In>
CLA_INLINE void read_block(const Blocks& s, const Turns<T>& turns, int64_t start, int64_t count, int64_t b,
                           int64_t head, const BlockScratch<T>& w) {
  const Joined& x = s.inputs;
  const In* const data = static_cast<const In*>(x.qkv);
  for (int64_t which = 0; which < 3; ++which) {
    T* const to = which == 0 ? w.q : which == 1 ? w.k : w.v;
    for (int64_t i = 0; i < count; ++i) {
      const In* const from = in_joined(x, data, start + i, b, which, head);
      if (which == 2) {
        padded(from, x.dim, w.columns, w.v + i * w.columns);
      } else {
        padded(from, x.dim, w.columns, w.raw);
        turn_row(turns, Map::none, i, w.raw, w.mapped, to + i * w.columns);
      }
    }
    for (int64_t i = count * w.columns; i < w.room * w.columns; ++i) to[i] = 0;
  }
}

// Weights of the block's rows before dropout, zero where nothing is seen.
template <class T>
CLA_SHARED void weigh(const Blocks& s, int64_t start, int64_t count, int64_t b, const BlockScratch<T>& w) {
  across(w.k, w.columns, w.room, w.columns, w.across_k, w.room);
  scores_of(w.q, w.columns, w.across_k, w.room, s.inputs.dim, s.causal, w.weights);
  const bool* const padding = s.padding != nullptr ? s.padding + b * s.inputs.length + start : nullptr;
  for (int64_t i = 0; i < w.room; ++i) {
    T* const row = w.weights + i * w.room;
    const int64_t seen = i >= count ? 0 : s.causal ? i + 1 : count;
    if (!s.softmax) {
      for (int64_t j = 0; j < seen; ++j) row[j] = row[j] < 0 ? T(0) : row[j];
    } else if (seen > 0) {
      if (padding != nullptr) {
        for (int64_t j = 0; j < seen; ++j) row[j] = padding[j] ? -__builtin_huge_val() : row[j];
      }
      const T top = highest(row, seen);
      for (int64_t j = 0; j < seen; ++j) {
        T scale, rest;
        exponential(row[j] - top, &scale, &rest);
        row[j] = scale + scale * rest;
      }
    }
    if (padding != nullptr) {
      for (int64_t j = 0; j < seen; ++j) row[j] = padding[j] ? T(0) : row[j];
    }
    if (s.softmax && seen > 0) {
      T total = 0;
      for (int64_t j = 0; j < seen; ++j) total += row[j];
      const T inverse = total > 0 || total != total ? static_cast<T>(1) / total : T(0);
      for (int64_t j = 0; j < seen; ++j) row[j] *= inverse;
    }
    for (int64_t j = seen; j < w.room; ++j) row[j] = 0;
  }
}

CLA_INLINE int64_t row_of_weights(const Blocks& s, int64_t b, int64_t head, int64_t position) {
  return (b * s.inputs.heads + head) * s.inputs.length + position;
}

template <class T, class In>
void blocks_head(const Blocks& s, const Turns<T>& turns, int64_t block, int64_t b, int64_t head, T* scratch) {
  const Joined& x = s.inputs;
  const int64_t size = s.size < x.length ? s.size : x.length, start = block * size;
  const int64_t count = x.length - start < size ? x.length - start : size;
  const BlockScratch<T> w(size, x.dim, scratch);
  read_block<T, In>(s, turns, start, count, b, head, w);
  weigh(s, start, count, b, w);
  for (int64_t i = 0; s.dropout.seed != nullptr && i < count; ++i) {
    dropout_row(s.dropout, row_of_weights(s, b, head, start + i), count, w.factors);
    for (int64_t j = 0; j < count; ++j) w.weights[i * w.room + j] *= w.factors[j];
  }
  if (s.causal) {
    product<T, Shape::lower>(w.weights, w.room, w.v, w.columns, w.room, w.columns, w.room, w.grad, w.columns);
  } else {
    product<T, Shape::full>(w.weights, w.room, w.v, w.columns, w.room, w.columns, w.room, w.grad, w.columns);
  }
  for (int64_t i = 0; i < count; ++i) {
    In* const to = static_cast<In*>(s.out) + (((start + i) * x.batch + b) * x.heads + head) * x.dim;
    narrow_row(w.grad + i * w.columns, to, x.dim);
  }
}

template <class T, class In>
void blocks_gradient_head(const BlocksGradient& g, const Turns<T>& turns, int64_t block, int64_t b, int64_t head,
                          T* scratch, double* theta) {
  const Blocks& s = g.blocks;
  const Joined& x = s.inputs;
  const int64_t size = s.size < x.length ? s.size : x.length, start = block * size;
  const int64_t count = x.length - start < size ? x.length - start : size;
  const BlockScratch<T> w(size, x.dim, scratch);
  read_block<T, In>(s, turns, start, count, b, head, w);
  weigh(s, start, count, b, w);
  for (int64_t i = 0; i < w.room; ++i) {
    T* const to = w.grad + i * w.columns;
    const In* const from = static_cast<const In*>(g.grad_out) + (((start + i) * x.batch + b) * x.heads + head) * x.dim;
    if (i < count) {
      padded(from, x.dim, w.columns, to);
    } else {
      for (int64_t j = 0; j < w.columns; ++j) to[j] = 0;
    }
  }
  across(w.v, w.columns, w.room, w.columns, w.across_v, w.room);
  scores_of(w.grad, w.columns, w.across_v, w.room, x.dim, s.causal, w.slopes);
  // Weights become what the values were multiplied by, slopes the gradients of the scores.
  for (int64_t i = 0; i < w.room; ++i) {
    T *const weights = w.weights + i * w.room, *const slopes = w.slopes + i * w.room;
    const int64_t seen = i >= count ? 0 : s.causal ? i + 1 : count;
    const bool drops = s.dropout.seed != nullptr && seen > 0;
    if (drops) {
      dropout_row(s.dropout, row_of_weights(s, b, head, start + i), count, w.factors);
      for (int64_t j = 0; j < seen; ++j) slopes[j] *= w.factors[j];
    }
    if (s.softmax) {
      const T along = dot(slopes, weights, seen);
      for (int64_t j = 0; j < seen; ++j) slopes[j] = weights[j] * (slopes[j] - along);
    } else {
      for (int64_t j = 0; j < seen; ++j) slopes[j] = weights[j] > 0 ? slopes[j] : T(0);
    }
    for (int64_t j = seen; j < w.room; ++j) slopes[j] = 0;
    for (int64_t j = 0; drops && j < seen; ++j) weights[j] *= w.factors[j];
  }
  across(w.weights, w.room, w.room, w.room, w.turned, w.room);
  if (s.causal) {
    product<T, Shape::upper>(w.turned, w.room, w.grad, w.columns, w.room, w.columns, w.room, w.grad_v, w.columns);
    product<T, Shape::lower>(w.slopes, w.room, w.k, w.columns, w.room, w.columns, w.room, w.grad_q, w.columns);
  } else {
    product<T, Shape::full>(w.turned, w.room, w.grad, w.columns, w.room, w.columns, w.room, w.grad_v, w.columns);
    product<T, Shape::full>(w.slopes, w.room, w.k, w.columns, w.room, w.columns, w.room, w.grad_q, w.columns);
  }
  across(w.slopes, w.room, w.room, w.room, w.turned, w.room);
  if (s.causal) {
    product<T, Shape::upper>(w.turned, w.room, w.q, w.columns, w.room, w.columns, w.room, w.grad_k, w.columns);
  } else {
    product<T, Shape::full>(w.turned, w.room, w.q, w.columns, w.room, w.columns, w.room, w.grad_k, w.columns);
  }
  T* const angles = theta != nullptr ? w.angles : nullptr;
  In* const to = static_cast<In*>(g.grad_qkv);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; angles != nullptr && j < w.columns; ++j) angles[j] = 0;
    T *const grad_q = w.grad_q + i * w.columns, *const grad_k = w.grad_k + i * w.columns;
    turn_row_back(turns, Map::none, i, grad_q, w.q + i * w.columns, grad_q, angles);
    turn_row_back(turns, Map::none, i, grad_k, w.k + i * w.columns, grad_k, angles);
    if (angles != nullptr) add_angles(angles, static_cast<double>(i), x.dim, theta);
    narrow_row(grad_q, in_joined(x, to, start + i, b, 0, head), x.dim);
    narrow_row(grad_k, in_joined(x, to, start + i, b, 1, head), x.dim);
    narrow_row(w.grad_v + i * w.columns, in_joined(x, to, start + i, b, 2, head), x.dim);
  }
}

// --- by type -------------------------------------------------------------------------------------------------

#define CLA_BY_TYPE(T, dtype, call)              \
  if constexpr (kSame<T, double>) {              \
    using In = double;                           \
    call;                                        \
  } else if (dtype == Dtype::f32) {              \
    using In = float;                            \
    call;                                        \
  } else if (dtype == Dtype::bf16) {             \
    using In = bf16;                             \
    call;                                        \
  } else {                                       \
    using In = f16;                              \
    call;                                        \
  }

template <class T>
void residual(const Residual& s, int64_t first, int64_t last, T* scratch) {
  CLA_BY_TYPE(T, s.dtype, (residual_rows<T, In>(s, first, last, scratch)))
}
template <class T>
void residual_gradient(const ResidualGradient& s, int64_t first, int64_t last, T* scratch) {
  CLA_BY_TYPE(T, s.dtype, (residual_gradient_rows<T, In>(s, first, last, scratch)))
}
template <class T>
void gated(const Gated& s, int64_t first, int64_t last, T* scratch) {
  CLA_BY_TYPE(T, s.dtype, (gated_rows<T, In>(s, first, last, scratch)))
}
template <class T>
void gated_gradient(const GatedGradient& s, int64_t first, int64_t last, T* scratch) {
  CLA_BY_TYPE(T, s.dtype, (gated_gradient_rows<T, In>(s, first, last, scratch)))
}
template <class T>
void features(const Features& s, const Turns<T>& turns, int64_t first, int64_t last, T* scratch) {
  CLA_BY_TYPE(T, s.inputs.dtype, (features_rows<T, In>(s, turns, first, last, scratch)))
}
template <class T>
void features_gradient(const FeaturesGradient& s, const Turns<T>& turns, int64_t first, int64_t last, T* scratch,
                       double* theta) {
  CLA_BY_TYPE(T, s.inputs.dtype, (features_gradient_rows<T, In>(s, turns, first, last, scratch, theta)))
}
template <class T>
void blocks(const Blocks& s, const Turns<T>& turns, int64_t block, int64_t b, int64_t head, T* scratch) {
  CLA_BY_TYPE(T, s.inputs.dtype, (blocks_head<T, In>(s, turns, block, b, head, scratch)))
}
template <class T>
void blocks_gradient(const BlocksGradient& s, const Turns<T>& turns, int64_t block, int64_t b, int64_t head,
                     T* scratch, double* theta) {
  CLA_BY_TYPE(T, s.blocks.inputs.dtype, (blocks_gradient_head<T, In>(s, turns, block, b, head, scratch, theta)))
}

template <class T>
constexpr FusedKernels<T> kFused = {residual<T>, residual_gradient<T>, gated<T>,  gated_gradient<T>,
                                    features<T>, features_gradient<T>, blocks<T>, blocks_gradient<T>};
