// The backward pass of heads of more than 128 columns, and the kernel of all.
//
// A block holds half of a wide head's state, what 128 columns of one output need: dq and dk those of q and k, dv those
// of v. Each output is a scan of its own, as forward is, so that up to six blocks take a head: they read what they share
// at about the same time, mostly from the second-level cache. Forward keeps no states for them. With a normaliser dq and
// dk need slope[i] = -(q[i] . dq[i]) inverse[i] over all columns; it equals -(out[i] . grad_out[i]) inverse[i], which
// slopes.cu writes before they begin.
#pragma once

#include "backward.cuh"

namespace cla::cuda {

// The next rows of dk or dv.
template <class S>
CLA_DEVICE void reverse_chunk(Warp<S>& w, unsigned char* stage, int count, Target<S>& target) {
  w.choose_boost(stage);
  const float scale = w.state_scale();
  w.score(stage);
  sync_threads();
  typename Warp<S>::Output out;
  w.multiply_state(stage, scale, out);
  if constexpr (S::kJob == Job::dk) {
    finish<false>(w, stage, S::kC, count, w.vector, out, target);
  } else {
    finish<false>(w, stage, S::kC, count, {0.0f, 0.0f, 0.0f, 0.0f}, out, target);
  }
  w.update(stage);
}

// What the segment adds to the state.
template <class S>
CLA_DEVICE void wide_sums(Warp<S>& w, const BackwardLaunch& s, const Turn& turn, const Place& place) {
  Ring<S, S::kSummed> ring(s, s.slopes, place);
  ring.walk(place.rows, [&](unsigned char* stage, int) {
    w.choose_boost(stage);
    w.update(stage);
    if constexpr (S::kJob == Job::dq && S::kNormalize) w.add_rows(stage, S::kC);
  });
  write_sums(w, s, turn);
  sync_threads();
}

// 128 columns of one output, from the state `start`.
template <class S>
CLA_DEVICE void wide_output(const BackwardLaunch& s, const Turn& turn, Place place, int part, const Rows& to,
                            const State& start) {
  place.column = part * S::kOwnColumns;
  if (s.segments > 1) {
    const int segment = S::kReverse ? s.segments - 1 - turn.number : turn.number;
    place = segment_of(place, segment, s.segment_rows);
  }
  Warp<S> w(place.column);
  if (turn.number < s.segments - 1) wide_sums(w, s, turn, place);
  Ring<S, S::kRead> ring(s, s.slopes, place);
  if (s.segments == 1) {
    read_initial(w, start, place.sequence);
  } else {
    look_back(w, s, turn, start, place.sequence);
  }
  Target<S> target(s, to, place);
  ring.walk(place.rows, [&](unsigned char* stage, int count) {
    if constexpr (S::kJob == Job::dq) {
      dq_chunk(w, s, stage, count, nullptr, target);
    } else {
      reverse_chunk(w, stage, count, target);
    }
  });
  if (S::kJob == Job::dk && place.segment == 0) {
    write_state(w, s.grad_initial, s.grad_initial.data + place.sequence * s.grad_initial.head);
  }
}

// The state with the columns of v shared out.
CLA_DEVICE State by_width(State state) {
  const State given = state;
  state.own = given.other;
  state.own_step = given.other_step;
  state.other = given.own;
  state.other_step = given.own_step;
  return state;
}

template <class In, bool kNormalize, int kColumnBlocks, bool kAligned>
CLA_DEVICE void wide_block(const BackwardLaunch& s) {
  const Turn turn = s.segments == 1 ? Turn{block_index(), 0} : take_turn(s);
  const Place place = sequence_of<true>(s, turn.head);
  const int part = turn.head % s.parts, of_depth = s.depth_parts;
  if (part < of_depth) {
    wide_output<Shape<In, Job::dq, kNormalize, kColumnBlocks, kAligned>>(s, turn, place, part, s.grad_q, s.initial);
  } else if (part < 2 * of_depth) {
    wide_output<Shape<In, Job::dk, kNormalize, kColumnBlocks, kAligned>>(s, turn, place, part - of_depth, s.grad_k,
                                                                        s.grad_final);
  } else {
    wide_output<Shape<In, Job::dv, kNormalize, kColumnBlocks, kAligned>>(s, turn, place, part - 2 * of_depth, s.grad_v,
                                                                        by_width(s.grad_final));
  }
}

template <class In, bool kNormalize, int kColumnBlocks, bool kAligned, bool kDecayed = false>
CLA_KERNEL(32 * warps(kColumnBlocks), least_blocks(Job::dq, sizeof(In), kColumnBlocks))
backward_kernel(CLA_PARAMETER BackwardLaunch s) {
  if constexpr (kColumnBlocks > kMostWarps) {
    wide_block<In, kNormalize, kColumnBlocks, kAligned>(s);
  } else {
    backward_block<Shape<In, Job::dq, kNormalize, kColumnBlocks, kAligned, kDecayed>,
                   Shape<In, Job::dkdv, kNormalize, kColumnBlocks, kAligned, kDecayed>>(s);
  }
}

// What launch.cuh launches.
template <bool kWithDecays>
struct BackwardFamily {
  using L = BackwardLaunch;
  static constexpr Job kJob = Job::dkdv;  // the other jobs' shared memory is laid out alike
  static constexpr bool kDecayed = kWithDecays;
  template <class In, bool kNormalize, int kColumnBlocks, bool kAligned>
  static constexpr auto kKernel = backward_kernel<In, kNormalize, kColumnBlocks, kAligned, kDecayed>;
};
using Backward = BackwardFamily<false>;
using DecayedBackward = BackwardFamily<true>;

}  // namespace cla::cuda
