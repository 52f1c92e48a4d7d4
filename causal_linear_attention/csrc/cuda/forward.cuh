// The forward pass: normaliser, and the loop over the chunks of a segment.
#pragma once

#include "lookback.cuh"
#include "output.cuh"

namespace cla::cuda {

// q . z for every row of the chunk, by as many threads a row as there are.
template <class S>
CLA_DEVICE void sum_queries(const Warp<S>& w, const unsigned char* stage) {
  using In = typename S::In;
  constexpr int kShare = S::kThreads > S::kChunk ? S::kThreads / S::kChunk : 1;  // threads of a row
  constexpr int kOwn = S::kColumns / kShare, kAtOnce = 16 / S::kBytes;
  const int column = thread_index() % kShare * kOwn;
#pragma unroll
  for (int at = 0; at < S::kChunk; at += S::kThreads / kShare) {
    const int i = at + thread_index() / kShare;
    const In* const q = w.tile(stage, kQ, 0, 0) + i * S::kPitch + column;
    float total = 0.0f;
#pragma unroll
    for (int m = 0; m < kOwn; m += kAtOnce) {
      const Bytes16 some = *reinterpret_cast<const Bytes16*>(q + m);
      const float* const z = w.floats(S::kZ) + column + m;
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        if constexpr (S::kBytes == 4) {
          total += from_bits(some.x[x]) * z[x];
        } else {
          total += low(some.x[x], In{}) * z[2 * x] + high(some.x[x], In{}) * z[2 * x + 1];
        }
      }
    }
#pragma unroll
    for (int mask = 1; mask < kShare; mask *= 2) total += shuffle_xor(total, mask);
    if (thread_index() % kShare == 0) w.row_sums(S::kRowBlocks)[i] = total;
  }
}

// Before the next chunk's sum_queries, and before the first.
template <class S>
CLA_DEVICE void publish_z(const Warp<S>& w) {
#pragma unroll
  for (int x = 0; x < 4 * S::kVectors; ++x) {
    const int column = w.index * 16 + x / 4 * S::kOwnColumns + x % 4 / 2 * 8 + lane_column() + x % 2;
    if (lane_row() == 0) w.floats(S::kZ)[column] = w.vector[x];
  }
}

// The inverse denominators, whose places in memory begin at `to`: a row's scores and q . z.
template <class S>
CLA_DEVICE void invert(const Warp<S>& w, float eps, float* to, int count) {
#pragma unroll
  for (int at = 0; at < S::kChunk; at += S::kThreads) {
    const int i = at + thread_index();
    if (i >= S::kChunk) break;
    float total = w.row_sums(S::kRowBlocks)[i];
    if constexpr (S::kDecayed) total = hidden(w.factors().of_state(i), total);
    total += w.row_sums(0)[i];
#pragma unroll
    for (int j = 1; j < S::kRowBlocks; ++j) {
      if (j <= i / 16) total += w.row_sums(j)[i];
    }
    const float inverse = 1.0f / (total + eps);
    w.floats(S::kInverse)[i] = inverse;
    if (i < count) to[i] = inverse;
  }
}

template <class S>
CLA_DEVICE void add_chunk(Warp<S>& w, unsigned char* stage) {
  w.update(stage);
  if constexpr (S::kNormalize) w.add_rows(stage, kK);
}

// Writes `count` rows of the output, and `inverse` with a normaliser.
template <class S>
CLA_DEVICE void forward_chunk(Warp<S>& w, const ForwardLaunch& s, unsigned char* stage, int count, float* inverse,
                              Target<S>& target) {
  w.find_factors(stage, count, s.decay.row == 0);
  const float scale = w.state_scale();
  w.score(stage);
  if constexpr (S::kNormalize) sum_queries(w, stage);
  sync_threads();
  if constexpr (S::kNormalize) invert(w, s.eps, inverse, count);
  sync_warp();
  typename Warp<S>::Output out;
  w.multiply_state(stage, scale, out);
  w.decay_rows(out);
  typename Warp<S>::Input c[S::kRowBlocks];
  auto dirty_rows = w.clean_column();
  const bool dirty = w.add_finite(stage, kV, c, out, dirty_rows);
  if constexpr (S::kNormalize) {
    sync_threads();
    multiply_rows<S>(w.floats(S::kInverse), out);
  } else {
    multiply_all<S>(s.scale, out);
  }
  write(w, target, count, out);
  if (dirty) [[unlikely]] poison(w, stage, target, dirty_rows, count);
}

// What the segment adds to the state.
template <class S>
CLA_DEVICE void forward_sums(Warp<S>& w, const ForwardLaunch& s, const Turn& turn, const Place& place) {
  Ring<S, S::kSummed> ring(s, nullptr, place);
  ring.walk(place.rows, [&](unsigned char* stage, int count) {
    w.find_factors(stage, count, s.decay.row == 0);
    add_chunk(w, stage);
  });
  write_sums(w, s, turn);
  sync_threads();
}

// From the state before the segment, which `enter` finds.
template <class S, class Enter>
CLA_DEVICE void forward_outputs(Warp<S>& w, const ForwardLaunch& s, const Place& place, const Enter& enter) {
  Ring<S, S::kRead> ring(s, nullptr, place);
  enter();
  if constexpr (S::kNormalize) publish_z(w);
  Target<S> target(s, s.out, place);
  float* inverse = s.inverse + static_cast<int64_t>(place.head) * s.length + place.begin;
  const bool keeps = s.kept.data != nullptr && place.head % s.kept.group == 0;
  const int step = keeps ? s.kept_rows : place.rows;
#pragma unroll 1
  for (int done = 0; done < place.rows; done += step) {
    if (keeps && place.segment + done > 0) {
      write_state(w, s.kept, kept_state(s, place.head, place.begin + done));
    }
    ring.walk(place.rows - done < step ? place.rows - done : step, [&](unsigned char* stage, int count) {
      forward_chunk(w, s, stage, count, inverse, target);
      inverse += S::kChunk;
      add_chunk(w, stage);
      if constexpr (S::kNormalize) publish_z(w);
    });
  }
  if (place.segment == s.segments - 1) {
    if (float* const to = memory_of(s.final, place.sequence)) write_state(w, s.final, to);
  }
}

// A block takes all of a head's sequence or, where heads are few, one segment. Blocks that share out the columns of a
// wide head all find its z and write the same inverses.
template <class S>
CLA_DEVICE void forward_block(const ForwardLaunch& s) {
  const bool whole = s.segments == 1;
  const Turn turn = whole ? Turn{block_index(), 0} : take_turn(s);
  Place place = sequence_of<S::kWide>(s, turn.head);
  if (S::kWide) place.column = turn.head % s.parts * S::kOwnColumns;
  if (!whole) place = segment_of(place, turn.number, s.segment_rows);
  Warp<S> w(place.column);
  if (turn.number < s.segments - 1) forward_sums(w, s, turn, place);
  forward_outputs(w, s, place, [&] {
    if (whole) {
      read_initial(w, s.initial, place.sequence);
    } else {
      look_back(w, s, turn, s.initial, place.sequence);
    }
  });
}

template <class In, bool kNormalize, int kColumnBlocks, bool kAligned, bool kDecayed = false>
CLA_KERNEL(32 * warps(kColumnBlocks), least_blocks(Job::forward, sizeof(In), kColumnBlocks))
forward_kernel(CLA_PARAMETER ForwardLaunch s) {
  forward_block<Shape<In, Job::forward, kNormalize, kColumnBlocks, kAligned, kDecayed>>(s);
}

// What launch.cuh launches.
template <bool kWithDecays>
struct ForwardFamily {
  using L = ForwardLaunch;
  static constexpr Job kJob = Job::forward;
  static constexpr bool kDecayed = kWithDecays;
  template <class In, bool kNormalize, int kColumnBlocks, bool kAligned>
  static constexpr auto kKernel = forward_kernel<In, kNormalize, kColumnBlocks, kAligned, kDecayed>;
};
using Forward = ForwardFamily<false>;
using DecayedForward = ForwardFamily<true>;

}  // namespace cla::cuda
