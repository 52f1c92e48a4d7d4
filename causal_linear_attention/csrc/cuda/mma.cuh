// What the tensor cores multiply: 16 x 16 fragments in the registers of a warp.
//
// A fragment is four registers of 16-bit pairs. Lane 4 g + t holds, of the left factor (m, k) of PTX's
// mma.m16n8k16, columns 2 t and 2 t + 1 of rows g, g + 8 (registers 0 and 1) and the columns 8 further on
// (2 and 3). Of the right factor (n, k), transposed, registers 0 and 1 hold n = g (k = 2 t, then 8 further on)
// and 2 and 3 hold n = g + 8: each product with eight n takes two neighbouring registers.
//
// Numbers that 16 bits do not hold are a sum of parts, and a product is that of the parts whose error counts:
// float32 in three parts of bfloat16 (six products), sums that cancel in two.
#pragma once

#include "device.cuh"

namespace cla::cuda {

template <class In>
struct Kind {  // of a number's parts; 16-bit inputs are their own
  using Part = In;
  static constexpr int kParts = 1;
};
template <>
struct Kind<float> {
  using Part = Bf16;
  static constexpr int kParts = 3;
};
// Sums do not fit float16's exponents: they are scaled before they become a factor.
template <class In>
inline constexpr bool kNarrow = false;
template <>
inline constexpr bool kNarrow<Half> = true;

template <int kParts>
struct Fragment {
  uint32_t x[kParts][4];
};
enum class Factor { left, right };

CLA_DEVICE int lane_index() { return thread_index() % 32; }
CLA_DEVICE int warp_index() { return thread_index() / 32; }
// A sum over the lanes of a warp, in all of them.
CLA_DEVICE float sum_of_lanes(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

// Rows g and g + 8 and columns 2 t, 2 t + 1 of a lane.
CLA_DEVICE int lane_row() { return lane_index() / 4; }
CLA_DEVICE int lane_column() { return lane_index() % 4 * 2; }

// Register r becomes the pair (x, y), in parts whose sum it is. An infinity's second part is a NaN.
template <class Part, int kParts>
CLA_DEVICE void split(float x, float y, int r, Fragment<kParts>& to) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const uint32_t both = pack(x, y, Part{});
    to.x[p][r] = both;
    x -= low(both, Part{});
    y -= high(both, Part{});
  }
}

template <class Part, int kParts>
CLA_DEVICE float first_of(const Fragment<kParts>& from, int r) {
  float total = 0.0f;
#pragma unroll
  for (int p = kParts - 1; p >= 0; --p) total += low(from.x[p][r], Part{});
  return total;
}
template <class Part, int kParts>
CLA_DEVICE float second_of(const Fragment<kParts>& from, int r) {
  float total = 0.0f;
#pragma unroll
  for (int p = kParts - 1; p >= 0; --p) total += high(from.x[p][r], Part{});
  return total;
}

template <bool kTranspose, Factor kFactor>
CLA_CALL Fragment<3> load_split(const float* from, int pitch) {
  Fragment<3> to;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int eight_rows = kFactor == Factor::left ? r % 2 : r / 2;
    const int m = lane_row() + eight_rows * 8, k = lane_column() + (r % 2 + r / 2 - eight_rows) * 8;
    const float* const at = from + (kTranspose ? k * pitch + m : m * pitch + k);
    split<Bf16>(at[0], at[kTranspose ? pitch : 1], r, to);
  }
  return to;
}

// The fragment that begins at `from` in an array in shared memory whose rows are kPitch numbers apart, or the
// transposed one, whose rows are the array's columns.
template <bool kTranspose, Factor kFactor, int kPitch, class In>
CLA_DEVICE void load(const In* from, Fragment<Kind<In>::kParts>& to) {
  if constexpr (sizeof(In) == 2) {
    const int lane = lane_index();
    const bool rows_first = kTranspose == (kFactor == Factor::right);
    const int row = (rows_first ? lane / 8 % 2 : lane / 16) * 8 + lane % 8;
    const int column = (rows_first ? lane / 16 : lane / 8 % 2) * 8;
    ldmatrix_x4<kTranspose>(to.x[0], from + row * kPitch + column);
  } else {
    to = load_split<kTranspose, kFactor>(from, kPitch);
  }
}

// A 16 x 16 array of sums in two halves of eight columns: lane 4 g + t holds (g, 2 t), (g, 2 t + 1),
// (g + 8, 2 t), (g + 8, 2 t + 1) of each.
using Sums = float[2][4];

CLA_DEVICE void zero(Sums& sums) {
#pragma unroll
  for (int x = 0; x < 8; ++x) sums[x / 4][x % 4] = 0.0f;
}

CLA_DEVICE void add(Sums& to, const Sums& x, float factor = 1.0f) {
#pragma unroll
  for (int n = 0; n < 8; ++n) to[n / 4][n % 4] += x[n / 4][n % 4] * factor;
}

// sums += left right^T, the products of parts i and j with kLow <= i + j < kHigh.
template <class Part, int kLow, int kHigh, int kLeft, int kRight>
CLA_DEVICE void multiply_orders(Sums& sums, const Fragment<kLeft>& left, const Fragment<kRight>& right) {
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
#pragma unroll
    for (int j = 0; j < kRight; ++j) {
      if (i + j < kLow || i + j >= kHigh) continue;
      mma_m16n8k16(sums[0], left.x[i], right.x[j][0], right.x[j][1], sums[0], Part{});
      mma_m16n8k16(sums[1], left.x[i], right.x[j][2], right.x[j][3], sums[1], Part{});
    }
  }
}

// sums += left right^T. Tensor cores cut off what they add instead of rounding it: float32 takes each product
// from them on its own, the first parts apart from the others, and adds with ordinary instructions.
template <class Part, int kLeft, int kRight>
CLA_DEVICE void multiply(Sums& sums, const Fragment<kLeft>& left, const Fragment<kRight>& right) {
  constexpr int kOrders = kLeft > kRight ? kLeft : kRight;
  if constexpr (kOrders < 3) {
    multiply_orders<Part, 0, kOrders>(sums, left, right);
  } else {
    Sums product;
    zero(product);
    multiply_orders<Part, 1, kOrders>(product, left, right);
    add(sums, product);
    zero(product);
    multiply_orders<Part, 0, 1>(product, left, right);
    add(sums, product);
  }
}

// sums = start + left right^T.
template <class Part, int kRight>
CLA_DEVICE void multiply(Sums& sums, const Sums& start, const Fragment<1>& left, const Fragment<kRight>& right) {
  if constexpr (kRight == 1) {
    mma_m16n8k16(sums[0], left.x[0], right.x[0][0], right.x[0][1], start[0], Part{});
    mma_m16n8k16(sums[1], left.x[0], right.x[0][2], right.x[0][3], start[1], Part{});
  } else {
#pragma unroll
    for (int x = 0; x < 8; ++x) sums[x / 4][x % 4] = start[x / 4][x % 4];
    multiply<Part>(sums, left, right);
  }
}

// Sums (m, k), multiplied by `factor`, as the left factor of another product, or as the right one (n = m): the
// registers already are where they must be.
template <class Part, Factor kFactor, int kParts>
CLA_DEVICE void as_factor(const Sums& sums, float factor, Fragment<kParts>& to) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    split<Part>(sums[n][0] * factor, sums[n][1] * factor, kFactor == Factor::left ? 2 * n : n, to);
    split<Part>(sums[n][2] * factor, sums[n][3] * factor, kFactor == Factor::left ? 2 * n + 1 : n + 2, to);
  }
}

// A left factor of ones, in columns k <= m only if `triangle`: its products are sums over rows, prefix sums.
template <class Part>
CLA_DEVICE void ones(bool triangle, Fragment<1>& to) {
  const int m = lane_row(), k = lane_column();
  const uint32_t all = pack(1.0f, 1.0f, Part{});
  const uint32_t some = pack(k <= m ? 1.0f : 0.0f, k + 1 <= m ? 1.0f : 0.0f, Part{});
  to.x[0][0] = triangle ? some : all;
  to.x[0][1] = all;
  to.x[0][2] = triangle ? 0u : all;
  to.x[0][3] = triangle ? some : all;
}

CLA_DEVICE bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }

CLA_DEVICE float number(float x) { return x; }
template <class In>
CLA_DEVICE float number(In x) {
  return low(x.bits, x);
}
CLA_DEVICE void store(float x, float* to) { *to = x; }
template <class In>
CLA_DEVICE void store(float x, In* to) {
  to->bits = static_cast<uint16_t>(pack(x, 0.0f, In{}));
}
CLA_DEVICE float not_a_number(float) { return from_bits(0x7fc00000u); }
template <class In>
CLA_DEVICE In not_a_number(In) {
  return {0x7fffu};
}

// The power of two that brings x (not negative) to [2^top, 2^(top + 1)), or as near as one whose inverse is a normal
// number does; 1 for what is zero or not finite.
CLA_DEVICE float power_to(float x, int top) {
  const int exponent = static_cast<int>(bits_of(x) >> 23), power = 254 + top - exponent;
  return exponent == 0 || exponent >= 254 ? 1.0f : from_bits(static_cast<uint32_t>(power < 253 ? power : 253) << 23);
}
CLA_DEVICE float inverse_of_power(float x) { return from_bits((254u << 23) - bits_of(x)); }

// visit(a number of this type).
template <class Visit>
auto with_type(Dtype dtype, const Visit& visit) {
  if (dtype == Dtype::f32) return visit(float{});
  if (dtype == Dtype::bf16) return visit(Bf16{});
  return visit(Half{});
}

}  // namespace cla::cuda
