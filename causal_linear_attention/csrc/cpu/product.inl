// A few rows times a matrix (see Product): every number of the matrix is read once from memory, which takes longer
// than the arithmetic. Included inside a namespace of the instruction set.

template <int H, int... I>
CLA_INLINE Vector<float> with_distant_lanes(Vector<float> x, Lanes<I...>) {
  return x + shuffle<float, (I ^ H)...>(x, x);
}
// The sum of all lanes, by halves.
template <int H>
CLA_INLINE float folded(Vector<float> x) {
  if constexpr (H == 0) {
    return x[0];
  } else {
    return folded<H / 2>(with_distant_lanes<H>(x, typename CountLanes<kLanes<float>>::type{}));
  }
}

constexpr int kProductRows = CLA_VECTOR_BYTES == 64 ? 4 : 2;  // accumulators fit the registers
constexpr int kProductColumns = 4;

// Rows [row, row + R) at columns [column, column + C).
template <int R, int C>
CLA_INLINE void product_tile(const Product& p, int64_t row, int64_t column) {
  constexpr int L = kLanes<float>;
  const float *const x = p.x + row * p.depth, *const weight = p.weight + column * p.depth;
  Vector<float> sums[R][C] = {};
  int64_t i = 0;
  for (; i + L <= p.depth; i += L) {
    Vector<float> numbers[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) numbers[r] = load(x + r * p.depth + i);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const Vector<float> factors = load(weight + c * p.depth + i);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[r][c] += numbers[r] * factors;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      float total = folded<L / 2>(sums[r][c]);
      for (int64_t j = i; j < p.depth; ++j) total += x[r * p.depth + j] * weight[c * p.depth + j];
      const int64_t at = (row + r) * p.width + column + c;
      if (p.bias != nullptr) total += p.bias[column + c];
      if (p.residual != nullptr) total += p.residual[at];
      p.out[at] = total;
    }
  }
}

template <int C>
CLA_INLINE void product_columns(const Product& p, int64_t column) {
  int64_t row = 0;
  for (; row + kProductRows <= p.rows; row += kProductRows) product_tile<kProductRows, C>(p, row, column);
  for (; row < p.rows; ++row) product_tile<1, C>(p, row, column);
}

void product(const Product& p, int64_t first, int64_t last) {
  int64_t column = first;
  for (; column + kProductColumns <= last; column += kProductColumns) product_columns<kProductColumns>(p, column);
  for (; column < last; ++column) product_columns<1>(p, column);
}
