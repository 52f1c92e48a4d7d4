// Heads that are cut into segments: how one launch passes the state on from segment to segment, by decoupled
// look-back (Merrill and Garland 2016, "Single-pass Parallel Prefix Scan with Decoupled Look-back").
//
// A block takes a ticket when it starts, for one segment of one head: first the first segments of all heads, then the
// second ones and so on, in the order in which states follow each other. It waits only for earlier tickets, whose
// blocks are running or done, so the launch ends in whatever order a GPU starts its blocks and however few it runs at
// once.
//
// Having summed what its segment adds to the state, a block announces this sum. It then looks back for the last
// segment before its own whose total is announced, adds to that the sums of the segments between, from the earlier to
// the later, starts from the result, and announces its own total. Every total is therefore
// ((initial + sum 0) + sum 1) + ..., added in this order whichever totals a block found: the bits do not depend on
// the order in which blocks run. With decays a sum comes with its segment's, by which the total before is multiplied.
#pragma once

#include "state.cuh"

namespace cla::cuda {

enum Announced : int { kNothing, kSum, kTotal };  // nothing is what memory is cleared to

// Which segment of which head is this block's, counted in the order of their states.
struct Turn {
  int head = 0, number = 0;
};

CLA_DEVICE Turn take_turn(const Launch& s) {
  int* const shared = reinterpret_cast<int*>(shared_memory());
  if (thread_index() == 0) *shared = take_ticket(s.tickets);
  sync_threads();
  const int ticket = *shared;
  sync_threads();
  return {ticket % s.heads, ticket / s.heads};
}

// visit(number, the same in memory) for a turn's sum or total.
template <class S, class Visit>
CLA_DEVICE void for_sums(Warp<S>& w, const Launch& s, int head, int number, Announced what, const Visit& visit) {
  const int64_t which = 2 * (static_cast<int64_t>(head) * s.segments + number) + (what == kTotal);
  float* const at = s.sums + which * (S::kSums * S::kThreads) + thread_index();
#pragma unroll
  for (int x = 0; x < 8 * S::kColumnBlocks; ++x) visit(w.state[x / 8][x / 4 % 2][x % 4], at[x * S::kThreads]);
#pragma unroll
  for (int x = 0; x < 4 * S::kVectors; ++x) visit(w.vector[x], at[(8 * S::kColumnBlocks + x) * S::kThreads]);
}
// The decay of a turn's segment, which each thread has beside its numbers.
template <class S>
CLA_DEVICE float& decay_of_segment(const Launch& s, int head, int number) {
  const int64_t which = 2 * (static_cast<int64_t>(head) * s.segments + number);
  return s.sums[which * (S::kSums * S::kThreads) + (S::kSums - 1) * S::kThreads + thread_index()];
}
template <class S>
CLA_DEVICE void write_sums(Warp<S>& w, const Launch& s, const Turn& turn) {
  for_sums(w, s, turn.head, turn.number, kSum, [](float x, float& to) { to = x; });
  if constexpr (S::kDecayed) decay_of_segment<S>(s, turn.head, turn.number) = w.passed;
}

// Lets other blocks see what this block's threads wrote.
CLA_DEVICE void announce(int* flag, Announced what) {
  sync_threads();
  if (thread_index() == 0) store_release(flag, what);
}

// The last turn before `number` whose total is announced; the sums of all turns since are, too.
CLA_DEVICE int last_total(const int* flags, int number) {
  int* const shared = reinterpret_cast<int*>(shared_memory());
  if (thread_index() == 0) {
    for (Announced found = kSum; found != kTotal;) {
      found = static_cast<Announced>(wait_and_load_acquire(flags + --number));
    }
    *shared = number;
  }
  sync_threads();
  const int from = *shared;
  sync_threads();
  return from;
}

// Replaces the sum of this turn's segment, written by `write_sums`, by the state that the segment starts from.
template <class S>
CLA_DEVICE void look_back(Warp<S>& w, const Launch& s, const Turn& turn, const State& initial, int sequence) {
  int* const flags = s.tickets + 1 + turn.head * s.segments;
  const bool followed = turn.number < s.segments - 1;
  w.clear();
  if (turn.number == 0) {
    read_initial(w, initial, sequence);
  } else {
    if (followed) announce(flags + turn.number, kSum);
    const int from = last_total(flags, turn.number);
    for_sums(w, s, turn.head, from, kTotal, [](float& x, const float& total) { x = total; });
#pragma unroll 1
    for (int t = from + 1; t < turn.number; ++t) {
      if constexpr (S::kDecayed) {
        const float decay = decay_of_segment<S>(s, turn.head, t);
        for_sums(w, s, turn.head, t, kSum, [=](float& x, const float& sum) { x = hidden(decay, x) + sum; });
      } else {
        for_sums(w, s, turn.head, t, kSum, [](float& x, const float& sum) { x += sum; });
      }
    }
  }
  if (!followed) return;
  const int64_t to_total = int64_t{S::kSums} * S::kThreads;
  if constexpr (S::kDecayed) {
    const float decay = decay_of_segment<S>(s, turn.head, turn.number);
    for_sums(w, s, turn.head, turn.number, kSum,
             [&](float x, float& sum) { (&sum)[to_total] = hidden(decay, x) + sum; });
  } else {
    for_sums(w, s, turn.head, turn.number, kSum, [&](float x, float& sum) { (&sum)[to_total] = x + sum; });
  }
  announce(flags + turn.number, kTotal);
}

}  // namespace cla::cuda
