// What one warp does: it keeps 16 columns of the state, transposed, in registers and works out the same
// 16 columns of the outputs:
//
//     out^T = C^T P^T + S^T A^T,   S^T += C^T B,   P = A B^T (lower triangle)
//
// S^T is a sum in registers and, unchanged, the left factor of the product that follows. P is shared: the
// warps of a part compute it piece by piece and pass it on through shared memory.
#pragma once

#include "tiles.cuh"

namespace cla_cuda {

struct alignas(16) Bytes16 {
  uint32_t x[4];
};

CLA_DEVICE float number(float x) { return x; }
template <class In>
CLA_DEVICE float number(In x) {
  return low(x.bits, x);
}

template <class In, int kColumnBlocks, int kRowBlocks>
struct Walk {
  static constexpr int kRows = 16 * kRowBlocks;
  // Wide kernels have no room for two parts; chunks of 16 rows serve the forward pass alone.
  static constexpr bool kTwoParts = kColumnBlocks < 8, kOnlyForward = kRowBlocks == 1;
  static constexpr int kScoreUnroll = sizeof(In) == 4 ? 1 : 4;  // float32's parts need the registers
  using Memory = Layout<In, 16 * kColumnBlocks, kRows>;
  using Factor = typename Kind<In>::Part;
  using Input = Operand<Kind<In>::kInput>;
  using Wide = Operand<Kind<In>::kState>;

  const Sweep& s;
  const Memory& layout;
  unsigned char* const memory;
  const int warp, index, block;  // of the block of threads; the part; 16 columns of its c
  const Part& part;
  Sums state[kColumnBlocks];
  float vector[2] = {0.0f, 0.0f};  // of rows g and g + 8
  float boost = 1.0f;              // what weights and slopes are multiplied by, for float16

  CLA_DEVICE Walk(const Sweep& sweep, const Memory& at, unsigned char* bytes)
      : s(sweep),
        layout(at),
        memory(bytes),
        warp(thread_index() / 32),
        index(kTwoParts && warp >= part_warps(sweep.parts[0]) ? 1 : 0),
        block(warp - index * part_warps(sweep.parts[0])),
        part(sweep.parts[index]) {}

  CLA_DEVICE Normaliser normaliser() const { return kOnlyForward ? Normaliser::forward : s.normaliser; }
  CLA_DEVICE const In* tile(int stage, int x) const {
    return reinterpret_cast<const In*>(memory + layout.tile(stage, x));
  }
  CLA_DEVICE In* scores(int which) const { return reinterpret_cast<In*>(memory + layout.scores(index, which)); }
  CLA_DEVICE const float* weights(int stage) const {
    return reinterpret_cast<const float*>(memory + layout.weights(stage));
  }
  CLA_DEVICE const float* slopes(int stage) const {
    return reinterpret_cast<const float*>(memory + layout.slopes(stage));
  }
  CLA_DEVICE float* numbers(int which) const { return reinterpret_cast<float*>(memory + layout.numbers(which)); }
  // Column of c that number x of a piece belongs to; its column, or row of the chunk, is 2 t + x % 2.
  CLA_DEVICE int column_of(int x) const { return block * 16 + lane_row() + x / 2 * 8; }

  // --- the state ---------------------------------------------------------------------------------------

  // visit(number, m, k) for this lane's numbers of the state; k = depth is the vector's.
  template <class Visit>
  CLA_DEVICE void for_state(const Visit& visit) {
#pragma unroll
    for (int d = 0; d < kColumnBlocks; ++d) {
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int m = column_of(x % 4), k = d * 16 + x / 4 * 8 + lane_column() + x % 2;
        if (m < part.width && k < part.depth) visit(state[d][x / 4][x % 4], m, k);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (part.vector && column_of(2 * h) < part.width) visit(vector[h], column_of(2 * h), part.depth);
    }
  }

  // Where numbers lie in `sums`, and in a state of the caller.
  CLA_DEVICE float* sums(int segment) const {
    return part.sums + (head_index() * s.segments + segment) * part.width * (part.depth + 1);
  }
  CLA_DEVICE int offset(const State& at, int m, int k) const {
    return m * at.column + (k == part.depth ? at.vector : k * at.row);
  }

  CLA_DEVICE void enter() {
#pragma unroll
    for (int d = 0; d < kColumnBlocks; ++d) zero(state[d]);
    if (s.only_sums) return;
    if (part.initial.data != nullptr) {
      const float* const from = part.initial.data + head_index() * part.initial.head;
      for_state([&](float& x, int m, int k) { x = from[offset(part.initial, m, k)]; });
    }
#pragma unroll 1
    for (int t = 0; t < segment_index(); ++t) {
      const float* const from = sums(t);
      for_state([&](float& x, int m, int k) { x += from[m * (part.depth + 1) + k]; });
    }
  }

  // All four lanes of a row hold the vector's numbers and write the same.
  CLA_DEVICE void leave() {
    if (s.only_sums) {
      float* const to = sums(segment_index());
      for_state([&](float& x, int m, int k) { to[m * (part.depth + 1) + k] = x; });
    } else if (part.final.data != nullptr && segment_index() == s.segments - 1) {
      float* const to = part.final.data + head_index() * part.final.head;
      for_state([&](float& x, int m, int k) { to[offset(part.final, m, k)] = x; });
    }
  }

  // --- scores ------------------------------------------------------------------------------------------

  CLA_DEVICE void choose_boost(int stage) {
    if (!kNarrow<In> || normaliser() != Normaliser::values) return;
    float most = 0.0f;
    for (int i = lane_index(); i < kRows; i += 32) most = larger(most, weights(stage)[i]);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
    boost = to_unit(most);
  }

  CLA_DEVICE float weighted(float score, int stage, int j) const {
    if (normaliser() != Normaliser::values) return score;
    const float slope = part.vector ? slopes(stage)[j] : 0.0f;
    return (score * weights(stage)[j] + slope) * boost;
  }

  CLA_DEVICE void score(int stage) const {
    const In *const a = tile(stage, part.a), *const b = tile(stage, part.b);
    for (int x = block; x < kRowBlocks * (kRowBlocks + 1) / 2; x += part_warps(part)) {
      int row = 0;
      while ((row + 1) * (row + 2) / 2 <= x) ++row;
      const int column = x - row * (row + 1) / 2;
      Sums sums;
      zero(sums);
#pragma unroll kScoreUnroll
      for (int d = 0; d < kColumnBlocks; ++d) {
        Input left, right;
        load<false>(a, Memory::kPitch, row * 16, d * 16, left);
        load<false>(b, Memory::kPitch, column * 16, d * 16, right);
        multiply<Factor>(sums, left, right);
      }
#pragma unroll
      for (int y = 0; y < 4; ++y) {
        const int i = row * 16 + lane_row() + y % 2 * 8, j = column * 16 + y / 2 * 8 + lane_column();
        const float first = weighted(sums[y / 2][y % 2 * 2], stage, j);
        const float second = weighted(sums[y / 2][y % 2 * 2 + 1], stage, j + 1);
        store_scores(j <= i ? first : 0.0f, j < i ? second : 0.0f, i * Memory::kScorePitch + j);
      }
    }
  }

  CLA_DEVICE void store_scores(float x, float y, int at) const {
    if constexpr (sizeof(In) == 4) {
      scores(0)[at] = x;
      scores(0)[at + 1] = y;
    } else {
      Operand<2> parts;
      split<In>(x, y, 0, parts);
      *reinterpret_cast<uint32_t*>(scores(0) + at) = parts.x[0][0];
      if (layout.split_scores) *reinterpret_cast<uint32_t*>(scores(1) + at) = parts.x[1][0];
    }
  }

  // --- products ----------------------------------------------------------------------------------------

  // Rows [16 * row, 16 * row + 16) of this warp's columns of c, transposed.
  CLA_DEVICE void load_c(int stage, int row, Input& c) const {
    if (block < kColumnBlocks) {
      load<true>(tile(stage, part.c), Memory::kPitch, row * 16, block * 16, c);
    } else {
#pragma unroll
      for (int x = 0; x < Kind<In>::kInput * 4; ++x) c.x[x / 4][x % 4] = 0u;
    }
    const int ones = part.width - 1 - block * 16;
    if (normaliser() != Normaliser::forward || ones < 0 || ones > 15 || ones % 8 != lane_row()) return;
    const uint32_t pair = pack(1.0f, 1.0f, Factor{});
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r % 2 == ones / 8) c.x[0][r] = pair;
    }
  }

  // The zeros of P would carry a NaN or an infinity of c to earlier rows: such numbers of c become zero, and
  // `poison` puts a NaN where they belong. True if there was one; first[h] is then the first row it was in.
  CLA_DEVICE bool clean(Input (&c)[kRowBlocks], int (&first)[2]) const {
    float zeros = 0.0f;
#pragma unroll
    for (int x = 0; x < 4 * kRowBlocks; ++x) {
      const uint32_t pair = c[x / 4].x[0][x % 4];
      zeros += low(pair, Factor{}) * 0.0f + high(pair, Factor{}) * 0.0f;
    }
    if (!any_lane(zeros != 0.0f)) return false;
    first[0] = first[1] = kRows;
#pragma unroll
    for (int x = 4 * kRowBlocks - 1; x >= 0; --x) {
      uint32_t& pair = c[x / 4].x[0][x % 4];
      const int j = x / 4 * 16 + x % 4 / 2 * 8 + lane_column();
      const bool good = is_finite(low(pair, Factor{})), better = is_finite(high(pair, Factor{}));
      if (!better) first[x % 2] = j + 1;
      if (!good) first[x % 2] = j;
      pair = (good ? pair & 0xffffu : 0u) | (better ? pair & 0xffff0000u : 0u);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int mask = 1; mask < 4; mask *= 2) {
        const int other = static_cast<int>(shuffle_xor(static_cast<float>(first[h]), mask));
        first[h] = other < first[h] ? other : first[h];
      }
    }
    return true;
  }

  CLA_DEVICE static void poison(const int (&first)[2], Sums (&out)[kRowBlocks]) {
#pragma unroll
    for (int x = 0; x < 8 * kRowBlocks; ++x) {
      const int i = x / 4 * 8 + lane_column() + x % 2;
      if (i >= first[x % 4 / 2]) out[x / 8][x / 4 % 2][x % 4] = from_bits(0x7fc00000u);
    }
  }
  CLA_DEVICE void poison_state(const int (&first)[2]) {
#pragma unroll
    for (int x = 0; x < 8 * kColumnBlocks; ++x) {
      if (first[x % 4 / 2] < kRows) state[x / 8][x / 4 % 2][x % 4] = from_bits(0x7fc00000u);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (first[h] < kRows) vector[h] = from_bits(0x7fc00000u);
    }
  }

  // C^T P^T.
  CLA_DEVICE void triangle(const Input (&c)[kRowBlocks], Sums (&out)[kRowBlocks]) const {
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      zero(out[i]);
#pragma unroll
      for (int j = 0; j <= i; ++j) {
        Input p;
        load<false>(scores(0), Memory::kScorePitch, i * 16, j * 16, p);
        multiply<Factor>(out[i], c[j], p);
        if (!layout.split_scores) continue;
        load<false>(scores(1), Memory::kScorePitch, i * 16, j * 16, p);
        multiply<Factor>(out[i], c[j], p);
      }
    }
  }

  // out += S^T A^T; out arrives multiplied by boost.
  CLA_DEVICE void add_state(int stage, Sums (&out)[kRowBlocks]) const {
    float scale[2] = {1.0f, 1.0f};
    if constexpr (kNarrow<In>) {
      row_scales(scale);
      rescale(out, scale[0] / boost, scale[1] / boost);
    }
    const In* const a = tile(stage, part.a);
#pragma unroll
    for (int d = 0; d < kColumnBlocks; ++d) {
      Wide left;
      as_factor<Factor>(state[d], scale[0], scale[1], left);
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
        Input right;
        load<false>(a, Memory::kPitch, i * 16, d * 16, right);
        multiply<Factor>(out[i], left, right);
      }
    }
    if constexpr (kNarrow<In>) rescale(out, 1.0f / scale[0], 1.0f / scale[1]);
  }

  CLA_DEVICE void row_scales(float (&scale)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = 0.0f;
#pragma unroll
      for (int x = 0; x < 4 * kColumnBlocks; ++x) most = larger(most, state[x / 4][x / 2 % 2][x % 2 + 2 * h]);
      most = larger(most, shuffle_xor(most, 1));
      most = larger(most, shuffle_xor(most, 2));
      scale[h] = to_unit(most);
    }
  }
  CLA_DEVICE static float larger(float x, float y) {  // of the magnitudes
    const float size = from_bits(bits_of(y) & 0x7fffffffu);
    return size > x ? size : x;
  }
  CLA_DEVICE static void rescale(Sums (&out)[kRowBlocks], float top, float bottom) {
#pragma unroll
    for (int x = 0; x < 8 * kRowBlocks; ++x) out[x / 8][x / 4 % 2][x % 4] *= x % 4 < 2 ? top : bottom;
  }

  // S^T += C^T B, C's rows weighted where the normaliser says so.
  CLA_DEVICE void update(int stage, const Input (&c)[kRowBlocks]) {
    if (normaliser() != Normaliser::values) return add_products(stage, c);
    Wide scaled[kRowBlocks];
    float total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int x = 0; x < 4 * kRowBlocks; ++x) {
      const int r = x % 4, j = x / 4 * 16 + r / 2 * 8 + lane_column();
      const float first = first_of<Factor>(c[x / 4], r), second = second_of<Factor>(c[x / 4], r);
      const float* const w = weights(stage);
      split<Factor>(first * w[j] * boost, second * w[j + 1] * boost, r, scaled[x / 4]);
      if (part.vector) total[r % 2] += first * slopes(stage)[j] + second * slopes(stage)[j + 1];
    }
    add_products(stage, scaled);
    if (!part.vector) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      total[h] += shuffle_xor(total[h], 1);
      vector[h] += total[h] + shuffle_xor(total[h], 2);
    }
  }

  template <int kParts>
  CLA_DEVICE void add_products(int stage, const Operand<kParts> (&c)[kRowBlocks]) {
    const In* const b = tile(stage, part.b);
    const float factor = 1.0f / boost;
#pragma unroll
    for (int d = 0; d < kColumnBlocks; ++d) {
      Sums sums;  // of this chunk alone: tensor cores cut off what they add, ordinary additions round
      zero(sums);
#pragma unroll
      for (int j = 0; j < kRowBlocks; ++j) {
        Input right;
        load<true>(b, Memory::kPitch, j * 16, d * 16, right);
        multiply<Factor>(sums, c[j], right);
      }
      add(state[d], sums, factor);
    }
  }
};

}  // namespace cla_cuda
