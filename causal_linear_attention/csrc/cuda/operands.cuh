// What the tensor cores multiply: 16 x 16 pieces in the registers of a warp.
//
// A piece is four registers of 16-bit pairs. As the left factor (m, k) they are what PTX's mma.m16n8k16 calls
// a0 to a3; as the right factor (n, k), transposed, registers 0 and 2 belong to n = 0..7, 1 and 3 to n = 8..15.
// Lane 4 g + t holds rows g (registers 0, 2) and g + 8 (1, 3), columns 2 t, 2 t + 1 (0, 1) and 8 more (2, 3).
//
// Numbers that 16 bits do not hold are a sum of parts of bfloat16, and a product is that of the parts whose
// error counts: float32 in three parts (six products), the running state in two.
#pragma once

#include "device.cuh"

namespace cla_cuda {

template <class In>
struct Kind {  // 16-bit inputs
  using Part = In;
  static constexpr int kInput = 1, kState = 2;
};
template <>
struct Kind<float> {
  using Part = Bf16;
  static constexpr int kInput = 3, kState = 3;
};
// Sums do not fit float16's exponents: they are scaled before they become a factor.
template <class In>
inline constexpr bool kNarrow = false;
template <>
inline constexpr bool kNarrow<Half> = true;

template <int kParts>
struct Operand {
  uint32_t x[kParts][4];
};

CLA_DEVICE int lane_index() { return thread_index() % 32; }
// Rows g and g + 8 and columns 2 t, 2 t + 1 of a lane.
CLA_DEVICE int lane_row() { return lane_index() / 4; }
CLA_DEVICE int lane_column() { return lane_index() % 4 * 2; }

CLA_DEVICE bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }

// Register r becomes the pair (x, y), in parts whose sum it is.
template <class Part, int kParts>
CLA_DEVICE void split(float x, float y, int r, Operand<kParts>& to) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const uint32_t both = pack(x, y, Part{});
    to.x[p][r] = both;
    const float first = low(both, Part{}), second = high(both, Part{});
    x = is_finite(first) ? x - first : 0.0f;
    y = is_finite(second) ? y - second : 0.0f;
  }
}

template <class Part, int kParts>
CLA_DEVICE float first_of(const Operand<kParts>& from, int r) {
  float total = 0.0f;
#pragma unroll
  for (int p = kParts - 1; p >= 0; --p) total += low(from.x[p][r], Part{});
  return total;
}
template <class Part, int kParts>
CLA_DEVICE float second_of(const Operand<kParts>& from, int r) {
  float total = 0.0f;
#pragma unroll
  for (int p = kParts - 1; p >= 0; --p) total += high(from.x[p][r], Part{});
  return total;
}

template <bool kTranspose>
CLA_CALL Operand<3> load_split(const float* from, int pitch) {
  Operand<3> to;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int m = lane_row() + r % 2 * 8, k = lane_column() + r / 2 * 8;
    const float* const at = from + (kTranspose ? k * pitch + m : m * pitch + k);
    split<Bf16>(at[0], at[kTranspose ? pitch : 1], r, to);
  }
  return to;
}

// The piece at (row, column) of an array in shared memory whose rows are `pitch` numbers apart, or the
// transposed one, whose rows are the array's columns.
template <bool kTranspose, class In>
CLA_DEVICE void load(const In* from, int pitch, int row, int column, Operand<Kind<In>::kInput>& to) {
  const In* const corner = from + row * pitch + column;
  if constexpr (sizeof(In) == 2) {
    const int lane = lane_index();
    const int down = kTranspose ? lane / 16 * 8 : lane / 8 % 2 * 8;
    const int across = kTranspose ? lane / 8 % 2 * 8 : lane / 16 * 8;
    load_matrices<kTranspose>(to.x[0], corner + (down + lane % 8) * pitch + across);
  } else {
    to = load_split<kTranspose>(corner, pitch);
  }
}

// A 16 x 16 piece of sums in two halves of eight columns: lane 4 g + t holds (g, 2 t), (g, 2 t + 1),
// (g + 8, 2 t), (g + 8, 2 t + 1) of each.
using Sums = float[2][4];

CLA_DEVICE void zero(Sums& sums) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int x = 0; x < 4; ++x) sums[n][x] = 0.0f;
  }
}

// sums += left right^T, the products of parts i and j with kLow <= i + j < kHigh.
template <class Part, int kLow, int kHigh, int kLeft, int kRight>
CLA_DEVICE void multiply_orders(Sums& sums, const Operand<kLeft>& left, const Operand<kRight>& right) {
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
#pragma unroll
    for (int j = 0; j < kRight; ++j) {
      if (i + j < kLow || i + j >= kHigh) continue;
      multiply_add(sums[0], left.x[i], right.x[j][0], right.x[j][2], Part{});
      multiply_add(sums[1], left.x[i], right.x[j][1], right.x[j][3], Part{});
    }
  }
}

CLA_DEVICE void add(Sums& to, const Sums& x, float factor) {
#pragma unroll
  for (int n = 0; n < 8; ++n) to[n / 4][n % 4] += x[n / 4][n % 4] * factor;
}

// sums += left right^T. Tensor cores cut off what they add instead of rounding it: float32 takes each product
// from them on its own, the first parts apart from the others, and adds with ordinary instructions.
template <class Part, int kLeft, int kRight>
CLA_DEVICE void multiply(Sums& sums, const Operand<kLeft>& left, const Operand<kRight>& right) {
  constexpr int kOrders = kLeft > kRight ? kLeft : kRight;
  if constexpr (kOrders < 3) {
    multiply_orders<Part, 0, kOrders>(sums, left, right);
  } else {
    Sums product;
    zero(product);
    multiply_orders<Part, 1, kOrders>(product, left, right);
    add(sums, product, 1.0f);
    zero(product);
    multiply_orders<Part, 0, 1>(product, left, right);
    add(sums, product, 1.0f);
  }
}

// Sums as the left factor of another product: the registers already are where they must be.
template <class Part, int kParts>
CLA_DEVICE void as_factor(const Sums& sums, float top, float bottom, Operand<kParts>& to) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    split<Part>(sums[n][0] * top, sums[n][1] * top, 2 * n, to);
    split<Part>(sums[n][2] * bottom, sums[n][3] * bottom, 2 * n + 1, to);
  }
}

// Row n of the piece has ones in columns k <= n (kDiagonal) or in all columns: as a right factor, a prefix sum.
template <class Part>
CLA_DEVICE void prefix(bool diagonal, Operand<1>& to) {
  const int n = lane_row(), k = lane_column();
  const uint32_t ones = pack(1.0f, 1.0f, Part{});
  const uint32_t triangle = pack(k <= n ? 1.0f : 0.0f, k + 1 <= n ? 1.0f : 0.0f, Part{});
  to.x[0][0] = diagonal ? triangle : ones;
  to.x[0][1] = ones;
  to.x[0][2] = diagonal ? 0u : ones;
  to.x[0][3] = diagonal ? triangle : ones;
}

// The power of two that brings x (not negative) to [1, 2), and its inverse; 1 if there is none.
CLA_DEVICE float to_unit(float x) {
  const uint32_t exponent = bits_of(x) >> 23;
  return exponent == 0 || exponent >= 254 ? 1.0f : from_bits((254u - exponent) << 23);
}

}  // namespace cla_cuda
