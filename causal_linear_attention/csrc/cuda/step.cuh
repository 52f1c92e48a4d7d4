// Decoding: a column of a head's state takes in one more position.
#pragma once

#include "mma.cuh"

namespace cla::cuda {

constexpr int kStepWarps = 8, kStepColumns = 32;

// x times the decay; what a decay of 0 hides may be a NaN.
template <bool kDecayed>
CLA_DEVICE float decayed(float x, float decay) {
  if constexpr (!kDecayed) return x;
  return decay == 0.0f ? 0.0f : x * decay;
}

// state_out = decay state + k value for this column of `columns`, every eighth row of it; returns the same rows of
// q . state_out.
template <bool kDecayed = false, class In>
CLA_DEVICE float add_to_column(const In* q, const In* k, float value, int depth, int columns, const float* state,
                               float* state_out, float decay = 1.0f) {
  float total = 0.0f;
#pragma unroll 8
  for (int d = warp_index(); d < depth; d += kStepWarps) {
    const int64_t at = int64_t{d} * columns;
    const float sum = decayed<kDecayed>(state[at], decay) + number(k[d]) * value;
    state_out[at] = sum;
    total += number(q[d]) * sum;
  }
  return total;
}

// As `add_to_column` returns, of a column that holds the position already: this thread's rows are its own writes.
template <class In>
CLA_DEVICE float multiply_column(const In* q, int depth, int columns, const float* state) {
  float total = 0.0f;
#pragma unroll 8
  for (int d = warp_index(); d < depth; d += kStepWarps) total += number(q[d]) * state[int64_t{d} * columns];
  return total;
}

// The warps' shares of this lane's column, which each has left in `totals` (warps, columns), in the first warp.
CLA_DEVICE float sum_of_warps(const float* totals) {
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kStepWarps; ++w) total += totals[w * kStepColumns + lane_index()];
  return total;
}

}  // namespace cla::cuda
