// The state at the beginning and the end of a segment: from and to memory.
#pragma once

#include "warp.cuh"

namespace cla::cuda {

// visit(number, offset) for this lane's numbers of a state that lies in memory as `at` says. Those of the vector
// are the same in all lanes with equal columns.
template <class S, class Visit>
CLA_DEVICE void for_state(Warp<S>& w, const State& at, const Visit& visit) {
  const int lane = here(lane_index()), row = lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int d = 0; d < S::kColumnBlocks; ++d) {
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int m = w.index * 16 + x % 4 / 2 * 8 + row, k = d * 16 + x / 4 * 8 + column + x % 2;
      if (m < w.scan.width && k < w.scan.depth) visit(w.state[d][x / 4][x % 4], m * at.column + k * at.row);
    }
  }
  if (S::kNormaliser == Normaliser::none || !w.scan.vector) return;
  const int size = S::kNormaliser == Normaliser::forward ? w.scan.depth : w.scan.width;
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    const int m = w.index * 16 + x / 2 * 8 + column + x % 2;
    if (m < size) visit(w.vector[x], at.vector + m * at.vector_step);
  }
}

// The same for sums of a segment, which only this kernel reads.
template <int kColumnBlocks>
inline constexpr int kSumsOfThread = 8 * kColumnBlocks + 4;
template <class S, class Visit>
CLA_DEVICE void for_sums(Warp<S>& w, int segment, const Visit& visit) {
  constexpr int kNumbers = kSumsOfThread<S::kColumnBlocks>;
  const int64_t which = static_cast<int64_t>(w.head) * w.all.segments + segment;
  float* const at = w.scan.sums + which * (kNumbers * S::kThreads) + thread_index();
#pragma unroll
  for (int x = 0; x < 8 * S::kColumnBlocks; ++x) visit(w.state[x / 8][x / 4 % 2][x % 4], at[x * S::kThreads]);
#pragma unroll
  for (int x = 0; x < 4; ++x) visit(w.vector[x], at[(8 * S::kColumnBlocks + x) * S::kThreads]);
}

template <class S>
CLA_DEVICE void enter(Warp<S>& w, bool only_sums) {
#pragma unroll
  for (int d = 0; d < S::kColumnBlocks; ++d) zero(w.state[d]);
  if (only_sums) return;
  const State& initial = w.scan.initial;
  if (initial.data != nullptr) {
    const float* const from = initial.data + w.head * initial.head;
    for_state(w, initial, [&](float& x, int at) { x = from[at]; });
  }
#pragma unroll 1
  for (int t = 0; t < w.segment; ++t) {
    for_sums(w, t, [](float& x, const float& from) { x += from; });
  }
}

template <class S>
CLA_DEVICE void leave(Warp<S>& w, bool only_sums) {
  const State& last = w.scan.final;
  if (only_sums) {
    for_sums(w, w.segment, [](float x, float& to) { to = x; });
  } else if (last.data != nullptr && w.segment == w.all.segments - 1) {
    float* const to = last.data + w.head * last.head;
    for_state(w, last, [&](float x, int at) { to[at] = x; });
  }
}

}  // namespace cla::cuda
