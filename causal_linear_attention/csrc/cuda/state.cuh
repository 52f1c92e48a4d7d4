// A warp's part of a state, from and to memory.
#pragma once

#include "warp.cuh"

namespace cla::cuda {

// visit(number, offset) for this lane's numbers of a state's matrix, which lies in memory as `at` says; that is known
// when the kernel is compiled if all columns are there.
template <class S, class Visit>
CLA_DEVICE void for_matrix(Warp<S>& w, const State& at, const Visit& visit) {
  constexpr int kRow = S::kColumns + S::kNormalize;
  const int own_step = !S::kAligned ? at.own_step : S::kFromDepth ? kRow : 1;
  const int other_step = !S::kAligned ? at.other_step : S::kFromDepth ? 1 : kRow;
  const int lane = here(lane_index()), column = lane % 4 * 2, first = w.column() + lane / 4;
  const int offset = first * own_step + column * other_step;
#pragma unroll
  for (int d = 0; d < S::kColumnBlocks; ++d) {
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int own = x % 4 / 2 * 8, other = d * 16 + x / 4 * 8 + x % 2;  // further on
      if (S::kAligned || (first + own < at.own && column + other < at.other)) {
        visit(w.state[d][x / 4][x % 4], offset + own * own_step + other * other_step);
      }
    }
  }
}

// The same for the vector beside it, the same in all lanes with equal columns.
template <class S, class Visit>
CLA_DEVICE void for_vector(Warp<S>& w, const State& at, const Visit& visit) {
  if constexpr (!S::kNormalize || S::kJob == Job::dv) return;
  const int column = here(lane_index()) % 4 * 2;
#pragma unroll
  for (int x = 0; x < 4 * S::kVectors; ++x) {
    const int of_warp = S::kFromDepth ? w.column() : w.index * 16;
    const int d = of_warp + x / 4 * S::kOwnColumns + x % 4 / 2 * 8 + column + x % 2;
    if (S::kAligned || d < at.vector_size) visit(w.vector[x], at.vector + d * at.vector_step);
  }
}

template <class S, class Visit>
CLA_DEVICE void for_state(Warp<S>& w, const State& at, const Visit& visit) {
  for_matrix(w, at, visit);
  for_vector(w, at, visit);
}

template <class S>
CLA_DEVICE void read_state(Warp<S>& w, const State& at, const float* from) {
  for_state(w, at, [&](float& x, int offset) { x = from[offset]; });
}
// Null if there is none.
CLA_DEVICE float* memory_of(const State& at, int sequence) {
  const bool exists = at.data != nullptr && !(at.once && sequence % at.group != 0);
  return exists ? at.data + sequence / at.group * at.head : nullptr;
}
// Leaves w as it is, zero, if there is no state.
template <class S>
CLA_DEVICE void read_initial(Warp<S>& w, const State& at, int sequence) {
  if (const float* const from = memory_of(at, sequence)) read_state(w, at, from);
}
template <class S>
CLA_DEVICE void write_state(Warp<S>& w, const State& at, float* to) {
  for_state(w, at, [&](float x, int offset) { to[offset] = x; });
}

// The state that was kept before row `row` of a head, which is a multiple of kept_rows behind its sequence's first one.
CLA_DEVICE float* kept_state(const Launch& s, int head, int row) {
  return s.kept.data + head / s.kept.group * s.kept.head + static_cast<int64_t>(row / s.kept_rows - 1) * s.kept_size;
}

// This lane's part of the product of all numbers of w's state with those of another, summed.
template <class S>
CLA_DEVICE float dot_state(Warp<S>& w, const State& at, const float* with) {
  float of_matrix = 0.0f, of_vector = 0.0f;
  for_matrix(w, at, [&](float x, int offset) { of_matrix += x * with[offset]; });
  for_vector(w, at, [&](float x, int offset) { of_vector += x * with[offset]; });
  return of_matrix + of_vector / 8;  // eight lanes have the same numbers of the vector
}

}  // namespace cla::cuda
