// Register tiles: R rows of V vectors that stay in registers while a product runs over its depth.
// Included inside a namespace of the instruction set, after vector.inl.

template <class T, int R, int V>
struct Tile {
  Vector<T> acc[R][V];

  CLA_INLINE void zero() {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) acc[r][x] = Vector<T>{};
    }
  }

  CLA_INLINE void write(T* to, int64_t stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) store(to + r * stride + x * kLanes<T>, acc[r][x]);
    }
  }

  CLA_INLINE void add_to(T* to, int64_t stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) {
        T* const at = to + r * stride + x * kLanes<T>;
        store(at, load(at) + acc[r][x]);
      }
    }
  }

  CLA_INLINE void write_streaming(T* to, int64_t stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) stream(to + r * stride + x * kLanes<T>, acc[r][x]);
    }
  }

  // The same of factor * to.
  CLA_INLINE void add_to_scaled(T* to, int64_t stride, T factor) const {
    const Vector<T> factors = broadcast(factor);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) {
        T* const at = to + r * stride + x * kLanes<T>;
        store(at, factors * load(at) + acc[r][x]);
      }
    }
  }

  CLA_INLINE void weigh(const T* by, int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) acc[r][x] *= load(by + r * stride + x * kLanes<T>);
    }
  }

  // acc[r] += sum over k < depth of a[r * row + k] * b[k * stride].
  CLA_INLINE void multiply(const T* a, int64_t row, const T* b, int64_t stride, int64_t depth) {
    // Three rows a pointer: more pointers than that and the processor runs out of registers for them.
    const T* rows[(R + 2) / 3];
#pragma GCC unroll 16
    for (int r = 0; r < R; r += 3) rows[r / 3] = a + r * row;
    for (int64_t k = 0; k < depth; ++k) {
      Vector<T> values[V];
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) values[x] = load(b + k * stride + x * kLanes<T>);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Vector<T> factor = broadcast(rows[r / 3][r % 3 * row]);
#pragma GCC unroll 4
        for (int x = 0; x < V; ++x) acc[r][x] += factor * values[x];
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r += 3) {
        ++rows[r / 3];
        asm("" : "+r"(rows[r / 3]));  // keeps the compiler from making a pointer for every row after all
      }
    }
  }

  // The same over the R x R block on the diagonal, of which only k <= r counts. The rest is not multiplied
  // by zero but left out: a NaN in a later row of b must not reach an earlier row.
  CLA_INLINE void multiply_triangle(const T* a, int64_t row, const T* b, int64_t stride) {
#pragma GCC unroll 16
    for (int k = 0; k < R; ++k) {
      Vector<T> values[V];
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) values[x] = load(b + k * stride + x * kLanes<T>);
#pragma GCC unroll 16
      for (int r = k; r < R; ++r) {
        const Vector<T> factor = broadcast(a[r * row + k]);
#pragma GCC unroll 4
        for (int x = 0; x < V; ++x) acc[r][x] += factor * values[x];
      }
    }
  }

  CLA_INLINE void scale(const T* factors) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vector<T> factor = broadcast(factors[r]);
#pragma GCC unroll 4
      for (int x = 0; x < V; ++x) acc[r][x] *= factor;
    }
  }
};

// Tiles that keep the multiply-add units busy without running out of registers: the widest has kWide
// vectors; narrower ones are taller.
#if CLA_VECTOR_BYTES == 64
constexpr int kWide = 4;
template <int V>
constexpr int kTall = V >= 3 ? 4 : 8;
#else
constexpr int kWide = 2;
template <int V>
constexpr int kTall = V >= 2 ? 4 : 8;
#endif

template <int V>
struct Columns {
  static constexpr int value = V;
};

// Calls body(Columns<V>, first column) so that `columns` columns, rounded up to vectors, are covered.
template <class T, class Body>
CLA_INLINE void for_columns(int64_t columns, Body body) {
  constexpr int L = kLanes<T>;
  int64_t x = 0;
  for (; x + (kWide - 1) * L < columns; x += kWide * L) body(Columns<kWide>{}, x);
  const int64_t left = (columns - x + L - 1) / L;
  if constexpr (kWide == 4) {
    if (left == 3) body(Columns<3>{}, x);
    if (left == 2) body(Columns<2>{}, x);
  }
  if (left == 1) body(Columns<1>{}, x);
}
