// The backward pass: the gradients of q, k and v in one pass over a head, from its last rows to its first.
//
// dq needs the state before each chunk of rows, dk and dv the one after it. Forward kept the former before every
// kept_rows-th row. A block takes these segments from the last to the first: it walks each one forwards from the
// kept state and writes dq, then back to its beginning and writes dk and dv, for which one sum, R, serves. It reads
// q, k, v and grad_out twice and the states, at most a quarter of a tensor, and writes dq, dk and dv: 11.25 tensors.
//
// What the way back reads again was read half a segment ago on average. Heads of 64 columns in 16 bits have 256 KB a
// segment, of which 128 KB wait for the way back: 50 MB in three blocks on each of 132 multiprocessors. That is an
// H100's second-level cache, and as a profiler counts, nearly all of it comes from memory again, with segments half as
// long, too. Keeping the state of every chunk for the way back instead of dq would write and read as many bytes as
// these rows have. During the walk for dq, R lies where the gradient of the initial state will.
//
// Where heads are few they are cut into segments (see lookback.cuh), each with a block of its own that reads q and
// grad_out once more between the two walks, for its sum; the walk for dq comes first because this needs the slopes.
#pragma once

#include "lookback.cuh"
#include "output.cuh"

namespace cla::cuda {

// --- the gradient of q ---------------------------------------------------------------------------------------

// Each warp's part of q[i] . dq[i] into shared memory, (rows, warps).
template <class S>
CLA_DEVICE void publish_projections(const Warp<S>& w, const unsigned char* stage, const typename Warp<S>::Output& out) {
  using Part = typename S::Part;
  float* const partial = w.floats(S::kWork);
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
    typename Warp<S>::Input queries;
    load<false, Factor::left, S::kPitch>(w.tile(stage, kQ, i, w.index), queries);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = 0.0f;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        total += first_of<Part>(queries, h + 2 * n) * out[i][n][2 * h];
        total += second_of<Part>(queries, h + 2 * n) * out[i][n][2 * h + 1];
      }
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      if (lane_index() % 4 == 0) partial[(i * 16 + h * 8 + lane_row()) * S::kWarps + w.index] = total;
    }
    sync_warp();
  }
}

// slope[i] = -(q[i] . dq[i]) weights[i] of a row, dq multiplied by its weights. Wide heads have it before they begin.
template <class S>
CLA_DEVICE float slope_of(const Warp<S>& w, const unsigned char* stage, int row) {
  if constexpr (S::kWide) return w.slopes(stage)[row];
  float total = 0.0f;
#pragma unroll
  for (int b = 0; b < S::kWarps; ++b) total += w.floats(S::kWork)[row * S::kWarps + b];
  return -total * w.weights(stage)[row];
}

// dq *= weights, then += slope[i] z[i]. c holds the keys.
template <class S>
CLA_DEVICE void project(Warp<S>& w, const unsigned char* stage, float* slopes, int count,
                        const typename Warp<S>::Input (&c)[S::kRowBlocks], typename Warp<S>::Output& out) {
  using Part = typename S::Part;
  multiply_rows<S>(w.weights(stage), out);
  if constexpr (!S::kWide) {
    publish_projections(w, stage, out);
    sync_threads();
  }
  Fragment<1> triangle, all_rows;
  ones<Part>(true, triangle);
  ones<Part>(false, all_rows);
  Sums before;  // the sum of c's rows before block i
  zero(before);
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
    Sums z;
    multiply<Part>(z, before, triangle, c[i]);
    multiply<Part>(before, all_rows, c[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = here(i * 16 + h * 8 + lane_row());
      const float slope = slope_of(w, stage, row);
#pragma unroll
      for (int x = 0; x < 4; ++x) out[i][x / 2][x % 2 + 2 * h] += slope * (z[x / 2][x % 2 + 2 * h] + w.vector[x]);
      if (!S::kWide && w.index == 0 && here(lane_index()) % 4 == 0 && row < count) slopes[row] = slope;
    }
    sync_warp();
  }
  w.add_to_vector(before);
}

template <class S>
CLA_DEVICE void dq_chunk(Warp<S>& w, unsigned char* stage, int count, float* slopes, Target<S>& target) {
  const float scale = w.state_scale();
  w.score(stage);
  sync_threads();
  typename Warp<S>::Output out;
  w.multiply_state(stage, scale, out);
  typename Warp<S>::Input c[S::kRowBlocks];
  int dirty_row = w.kClean;
  const bool dirty = w.add_finite(stage, kK, c, out, dirty_row);
  if constexpr (S::kNormalize) {
    project(w, stage, slopes, count, c, out);
    if (dirty) [[unlikely]] w.poison_vector(dirty_row);
  }
  write(w, target, count, out);
  if (dirty) [[unlikely]] poison(w, target, dirty_row, count);
  w.update(stage);
}

template <class S>
CLA_DEVICE void walk_dq(const BackwardLaunch& s, const Place& place) {
  Ring<S, S::kNormalize ? kAll : kAll & ~(1 << kQ)> ring(s, s.slopes, place);
  Warp<S> w;
  if (place.segment > 0) {
    read_state(w, s.kept, kept_state(s, place.head, place.begin));
  } else {
    read_initial(w, s.initial, place.sequence);
  }
  Target<S> target(s, s.grad_q, place);
  float* slopes = s.slopes + static_cast<int64_t>(place.head) * s.length + place.begin;
  ring.walk(place.rows, [&](unsigned char* stage, int count) {
    dq_chunk(w, stage, count, slopes, target);
    slopes += S::kChunk;
  });
}

// --- the gradients of k and v --------------------------------------------------------------------------------

// Into shared memory: this warp's strip of R, multiplied by `scale`, if it is among the kStripsAtOnce from `first` on.
template <class S>
CLA_DEVICE void publish(const Warp<S>& w, int first, float scale) {
  using In = typename S::In;
  if (w.index < first || w.index >= first + S::kStripsAtOnce) return;
  In* const strip = w.strip(w.index - first);
#pragma unroll
  for (int x = 0; x < 8 * S::kColumnBlocks; x += 2) {
    const Sums& sums = w.state[x / 8];
    store_pair(sums[x / 4 % 2][x % 4] * scale, sums[x / 4 % 2][x % 4 + 1] * scale,
               strip + w.row_of(x % 8) * S::kPitch + x / 8 * 16 + w.column_of(x % 8));
  }
  sync_warp();
}

// out = K R, multiplied by boost; `publish(w, 0, scale)` and a barrier came before.
template <class S>
CLA_DEVICE void multiply_strips(const Warp<S>& w, const unsigned char* stage, float scale,
                                typename Warp<S>::Output& out) {
  using Part = typename S::Part;
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) zero(out[i]);
#pragma unroll 1
  for (int first = 0; first < S::kColumnBlocks; first += S::kStripsAtOnce) {
    if (first > 0) {
      sync_threads();
      publish(w, first, here(scale));
      sync_threads();
    }
#pragma unroll
    for (int d = 0; d < S::kStripsAtOnce; ++d) {
      typename Warp<S>::Input right;
      load<true, Factor::right, S::kPitch>(w.strip(d) + w.index * 16, right);
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
        typename Warp<S>::Input left;
        load<false, Factor::left, S::kPitch>(w.tile(stage, kK, i, first + d), left);
        multiply<Part>(out[i], left, right);
      }
    }
  }
  w.scale_back(scale, out);
}

// out += P C for tile `which`; then what float16 was multiplied by is taken back and `plus` added.
template <bool kSecond, class S>
CLA_DEVICE void finish(const Warp<S>& w, unsigned char* stage, Tile which, int count, const float (&plus)[4],
                       typename Warp<S>::Output& out, Target<S>& target) {
  typename Warp<S>::Input c[S::kRowBlocks];
  int dirty_row = w.kClean;
  const bool dirty = w.template add_finite<kSecond>(stage, which, c, out, dirty_row);
  if constexpr (S::kNormalize) {
    const float back = w.kBoosted ? inverse_of_power(w.boost) : 1.0f;
#pragma unroll
    for (int x = 0; x < 8 * S::kRowBlocks; ++x) {
      float& number = out[x / 8][x / 4 % 2][x % 4];
      number = number * back + plus[x / 4 % 2 * 2 + x % 2];
    }
  }
  write(w, target, count, out);
  if (dirty) [[unlikely]] poison(w, target, dirty_row, count);
}

template <class S>
CLA_DEVICE void dkdv_chunk(Warp<S>& w, unsigned char* stage, int count, Target<S>& dk, Target<S>& dv) {
  constexpr float kNothing[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  w.choose_boost(stage);
  const float scale = w.state_scale();
  w.score(stage);
  publish(w, 0, here(scale));
  // Rows of grad_out that are not finite: `finish` changes them while other warps could be in `update`.
  typename Warp<S>::Input grad[S::kRowBlocks];
  const bool wait = sync_threads_or(w.load_c(stage, kGrad, grad));
  typename Warp<S>::Output out;
  w.multiply_state(stage, scale, out);
  finish<false>(w, stage, kQ, count, w.vector, out, dk);
  multiply_strips(w, stage, scale, out);
  finish<true>(w, stage, kGrad, count, kNothing, out, dv);
  if (wait) [[unlikely]] sync_threads();
  w.update(stage);
  w.publish_largest();
}

// From the state after the rows of `place`, which `enter` finds.
template <class S, class Enter>
CLA_DEVICE void walk_dkdv(const BackwardLaunch& s, const Place& place, const Enter& enter) {
  Ring<S, kAll> ring(s, s.slopes, place);
  Warp<S> w;
  enter(w);
  w.publish_largest();
  Target<S> dk(s, s.grad_k, place), dv(s, s.grad_v, place);
  ring.walk(place.rows, [&](unsigned char* stage, int count) { dkdv_chunk(w, stage, count, dk, dv); });
  if (s.segments == 1 || place.segment == 0) {
    write_state(w, s.grad_initial, s.grad_initial.data + place.sequence * s.grad_initial.head);
  }
}

// What the segment adds to R.
template <class S>
CLA_DEVICE void backward_sums(const BackwardLaunch& s, const Turn& turn, const Place& place) {
  Ring<S, 1 << kQ | 1 << kGrad> ring(s, s.slopes, place);
  Warp<S> w;
  ring.walk(place.rows, [&](unsigned char* stage, int) {
    w.choose_boost(stage);
    w.update(stage);
  });
  write_sums(w, s, turn);
}

// --- both ----------------------------------------------------------------------------------------------------

// A block takes all of a head's sequence, segment by segment, or, where heads are few, one segment. Between two walks a
// barrier, for shared memory and for the slopes.
template <class Dq, class Dkdv>
CLA_DEVICE void backward_block(const BackwardLaunch& s) {
  const bool whole = s.segments == 1;
  const Turn first = whole ? Turn{block_index(), 0} : take_turn(s);
  const int head = first.head, rows = whole ? s.kept_rows : s.segment_rows, all = sequence_of<false>(s, head).rows;
  int segment = (all > 0 ? (all - 1) / rows : 0) - first.number;
  bool begun = false;
#pragma unroll 1
  do {
    walk_dq<Dq>(s, segment_of(sequence_of<false>(s, head), segment, rows));
    sync_threads();
    const Turn turn{head, s.segments - 1 - segment};  // unless whole
    if (!whole && segment > 0) {
      backward_sums<Dkdv>(s, turn, segment_of(sequence_of<false>(s, head), segment, rows));
      sync_threads();
    }
    const Place place = segment_of(sequence_of<false>(s, here(head)), segment, rows);
    walk_dkdv<Dkdv>(s, place, [&](Warp<Dkdv>& w) {
      if (!whole) {
        look_back(w, s, turn, s.grad_final, place.sequence);
      } else {
        // Where the caller left it, or the walk over the segment behind.
        read_initial(w, begun ? s.grad_initial : s.grad_final, head);
      }
    });
    sync_threads();
    begun = true;
  } while (whole && --segment >= 0);
}

}  // namespace cla::cuda
