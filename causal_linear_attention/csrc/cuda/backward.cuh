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
//
// With decays e^g, row t's gradient of g is the sum over the rows i >= t before the next kept state, S, of q[i] . dq[i] -
// k[i] . dk[i], plus the product of S and R there: a sum over all rows would lose its digits. It begins again where a
// row's decay is 0. The walk for dq leaves q . dq where the gradient will be; with a normaliser it is -slope eps.
#pragma once

#include "lookback.cuh"
#include "output.cuh"

namespace cla::cuda {

// Of one number a row, that of the first row of `place`.
CLA_DEVICE int64_t first_number(const Launch& s, const Place& place) {
  return static_cast<int64_t>(place.head) * s.length + place.begin;
}

// --- the gradient of q ---------------------------------------------------------------------------------------

// Each warp's part of x[i] . dx[i] into shared memory, (rows, warps), of q or k.
template <class S>
CLA_DEVICE void publish_projections(const Warp<S>& w, const unsigned char* stage, Tile x, float* partial,
                                    const typename Warp<S>::Output& out) {
  using Part = typename S::Part;
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
    typename Warp<S>::Input queries;
    load<false, Factor::left, S::kPitch>(w.tile(stage, x, i, w.index), queries);
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

// x[i] . dx[i] from all warps' parts.
template <class S>
CLA_DEVICE float sum_projections(const float* partial, int row) {
  float total = 0.0f;
#pragma unroll
  for (int b = 0; b < S::kWarps; ++b) total += partial[row * S::kWarps + b];
  return total;
}

// slope[i] = -(q[i] . dq[i]) weights[i] of a row, dq multiplied by its weights. Wide heads have it before they begin.
template <class S>
CLA_DEVICE float slope_of(const Warp<S>& w, const unsigned char* stage, int row) {
  if constexpr (S::kWide) return w.slopes(stage)[row];
  return -sum_projections<S>(w.floats(S::kWork), row) * w.weights(stage)[row];
}

// Without a normaliser: q[i] . dq[i] to memory.
template <class S>
CLA_DEVICE void write_projections(const Warp<S>& w, const unsigned char* stage, float* to, int count,
                                  const typename Warp<S>::Output& out) {
  publish_projections(w, stage, kQ, w.floats(S::kWork), out);
  sync_threads();
#pragma unroll
  for (int row = thread_index(); row < S::kChunk; row += S::kThreads) {
    if (row < count) to[row] = sum_projections<S>(w.floats(S::kWork), row);
  }
  sync_warp();
}

// dq += slope[i] z[i], with decays.
template <class S>
CLA_DEVICE void add_decayed_z(Warp<S>& w, const unsigned char* stage, float* slopes, int count,
                              const typename Warp<S>::Input (&c)[S::kRowBlocks], typename Warp<S>::Output& out) {
  using Part = typename S::Part;
  const Factors<S> factors = w.factors();
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
    typename Warp<S>::Weighted within;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int m = lane_row() + r % 2 * 8, k = lane_column() + r / 2 * 8;
      split<Part>(factors.within(i, m, k), factors.within(i, m, k + 1), r, within);
    }
    Sums z;
    zero(z);
    multiply<Part>(z, within, c[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int of_block = h * 8 + lane_row(), row = here(i * 16 + of_block);
      const float slope = slope_of(w, stage, row), before = factors.within(i, of_block, factors.kBefore);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        float& sum = z[x / 2][x % 2 + 2 * h];
        sum += hidden(before, w.vector[x]);
        out[i][x / 2][x % 2 + 2 * h] += slope * sum;
      }
      if (w.index == 0 && here(lane_index()) % 4 == 0 && row < count) slopes[row] = slope;
    }
    sync_warp();
#pragma unroll
    for (int x = 0; x < 4; ++x) w.vector[x] = shuffle_from(z[x / 2][x % 2 + 2], 28 + here(lane_index()) % 4);
  }
}

// dq *= weights, then += slope[i] z[i]. c holds the keys.
template <class S>
CLA_DEVICE void project(Warp<S>& w, const unsigned char* stage, float* slopes, int count,
                        const typename Warp<S>::Input (&c)[S::kRowBlocks], typename Warp<S>::Output& out) {
  using Part = typename S::Part;
  multiply_rows<S>(w.weights(stage), out);
  if constexpr (!S::kWide) {
    publish_projections(w, stage, kQ, w.floats(S::kWork), out);
    sync_threads();
  }
  if constexpr (S::kDecayed) {
    add_decayed_z(w, stage, slopes, count, c, out);
    return;
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
CLA_DEVICE void dq_chunk(Warp<S>& w, const BackwardLaunch& s, unsigned char* stage, int count, float* numbers,
                         Target<S>& target) {
  w.find_factors(stage, count, s.decay.row == 0);
  const float scale = w.state_scale();
  w.score(stage);
  sync_threads();
  typename Warp<S>::Output out;
  w.multiply_state(stage, scale, out);
  w.decay_rows(out);
  typename Warp<S>::Input c[S::kRowBlocks];
  auto dirty_rows = w.clean_column();
  const bool dirty = w.add_finite(stage, kK, c, out, dirty_rows);
  if constexpr (S::kNormalize) {
    project(w, stage, numbers, count, c, out);
    if (dirty) [[unlikely]] w.poison_vector(dirty_rows);
  } else if constexpr (S::kDecayed) {
    write_projections(w, stage, numbers, count, out);
  }
  write(w, target, count, out);
  if (dirty) [[unlikely]] poison(w, stage, target, dirty_rows, count);
  w.update(stage);
}

// Returns, with decays and of a sequence's last rows, this lane's part of the product of the final state and its
// gradient.
template <class S>
CLA_DEVICE float walk_dq(const BackwardLaunch& s, const Place& place) {
  static constexpr int kUnread = S::kNormalize || S::kDecayed ? 0 : 1 << kQ;
  Ring<S, kAll & ~kUnread> ring(s, s.slopes, place);
  Warp<S> w;
  if (place.segment > 0) {
    read_state(w, s.kept, kept_state(s, place.head, place.begin));
  } else {
    read_initial(w, s.initial, place.sequence);
  }
  Target<S> target(s, s.grad_q, place);
  float* numbers = (S::kDecayed && !S::kNormalize ? s.grad_decay : s.slopes) + first_number(s, place);
  ring.walk(place.rows, [&](unsigned char* stage, int count) {
    dq_chunk(w, s, stage, count, numbers, target);
    numbers += S::kChunk;
  });
  if constexpr (S::kDecayed) {
    if (place.begin + place.rows == place.end) {
      if (const float* const with = memory_of(s.grad_final, place.sequence)) return dot_state(w, s.grad_final, with);
    }
  }
  return 0.0f;
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
  auto dirty_rows = w.clean_column();
  const bool dirty = w.template add_finite<kSecond>(stage, which, c, out, dirty_rows);
  if constexpr (S::kNormalize) {
    const float back = w.kBoosted ? inverse_of_power(w.boost) : 1.0f;
#pragma unroll
    for (int x = 0; x < 8 * S::kRowBlocks; ++x) {
      float& number = out[x / 8][x / 4 % 2][x % 4];
      float more = plus[x / 4 % 2 * 2 + x % 2];
      if constexpr (S::kDecayed) more = hidden(w.factors().of_state(x / 8 * 16 + w.row_of(x % 4)), more);
      number = number * back + more;
    }
  }
  if constexpr (S::kDecayed && !kSecond) publish_projections(w, stage, kK, w.floats(S::kProjections), out);
  write(w, target, count, out);
  if (dirty) [[unlikely]] poison(w, stage, target, dirty_rows, count);
}

// The gradient of the decays' logarithms, by the first warp, a lane for each row.
template <class S>
struct DecayGradients {
  float* to;            // of the chunk's first row
  float behind = 0.0f;  // the sum over what is behind the chunk, in the first warp

  CLA_DEVICE DecayGradients(const BackwardLaunch& s, const Place& place)
      : to(s.grad_decay + (static_cast<int64_t>(place.head) * s.length + first_row<S>(place))) {}

  // Begins again from the product of a state and its gradient, of which each lane of the block has a part.
  CLA_DEVICE void begin(const Warp<S>& w, float part) {
    float* const parts = w.floats(S::kParts);
    const float of_warp = sum_of_lanes(part);
    if (lane_index() == 0) parts[w.index] = of_warp;
    sync_threads();
    behind = 0.0f;
#pragma unroll
    for (int b = 0; b < S::kWarps; ++b) behind += parts[b];
  }

  // `finish` has published k . dk, and a barrier came since.
  CLA_DEVICE void write(const Warp<S>& w, const BackwardLaunch& s, const unsigned char* stage, int count) {
    if (w.index == 0) {
      const int row = lane_index();
      const bool inside = row < S::kChunk && row < count;
      float total = 0.0f, decay = 1.0f;
      if (inside) {
        decay = w.decays(stage)[row];
        total = S::kNormalize ? -s.eps * w.slopes(stage)[row] : to[row];
        total -= sum_projections<S>(w.floats(S::kProjections), row);
      }
      sync_warp();
      // Whether a row between this one and the last that it has added hides it from what is behind.
      float cut = shuffle_from(decay, row < 31 ? row + 1 : 31) == 0.0f && row < 31;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int from = row + step < 32 ? row + step : row;
        const float more = shuffle_from(total, from), cut_there = shuffle_from(cut, from);
        const bool adds = from != row && cut == 0.0f;
        total = adds ? total + more : total;
        cut = adds ? cut_there : cut;
      }
      if (cut == 0.0f) total += behind;
      if (decay == 0.0f) total = 0.0f;
      if (inside) to[row] = total;
      sync_warp();
      behind = shuffle_from(total, 0);
    }
    to -= S::kChunk;
  }
};

template <class S>
CLA_DEVICE void dkdv_chunk(Warp<S>& w, const BackwardLaunch& s, unsigned char* stage, int count, Target<S>& dk,
                           Target<S>& dv) {
  constexpr float kNothing[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  w.find_factors(stage, count, s.decay.row == 0);
  w.choose_boost(stage);
  const float scale = w.state_scale();
  w.score(stage);
  publish(w, 0, here(scale));
  // Rows of grad_out that are not finite: `finish` changes them while other warps could be in `update`.
  typename Warp<S>::Input grad[S::kRowBlocks];
  const bool wait = sync_threads_or(w.load_c(stage, kGrad, grad));
  typename Warp<S>::Output out;
  w.multiply_state(stage, scale, out);
  w.decay_rows(out);
  finish<false>(w, stage, kQ, count, w.vector, out, dk);
  multiply_strips(w, stage, scale, out);
  w.decay_rows(out);
  finish<true>(w, stage, kGrad, count, kNothing, out, dv);
  if (wait) [[unlikely]] sync_threads();
  w.update(stage);
  w.publish_largest();
}

// dkdv_chunk with the gradients of its decays, the chunk's first row `begin` rows behind that of `place`. `at_end` is
// what walk_dq returned.
template <class S>
CLA_DEVICE void decayed_chunk(Warp<S>& w, const BackwardLaunch& s, const Place& place, int begin, float at_end,
                              unsigned char* stage, int count, DecayGradients<S>& decays, Target<S>& dk,
                              Target<S>& dv) {
  const int end = begin + (count < S::kChunk ? count : S::kChunk);
  if (place.begin + end == place.end) {
    decays.begin(w, at_end);
  } else if (end % s.kept_rows == 0) {
    decays.begin(w, dot_state(w, s.kept, kept_state(s, place.head, place.begin + end)));
  }
  dkdv_chunk(w, s, stage, count, dk, dv);
  sync_threads();
  decays.write(w, s, stage, count);
}

// From the state after the rows of `place`, which `enter` finds.
template <class S, class Enter>
CLA_DEVICE void walk_dkdv(const BackwardLaunch& s, const Place& place, float at_end, const Enter& enter) {
  Ring<S, kAll> ring(s, s.slopes, place);
  Warp<S> w;
  enter(w);
  w.publish_largest();
  Target<S> dk(s, s.grad_k, place), dv(s, s.grad_v, place);
  if constexpr (S::kDecayed) {
    DecayGradients<S> decays(s, place);
    int begin = first_row<S>(place) - place.begin;
    ring.walk(place.rows, [&](unsigned char* stage, int count) {
      decayed_chunk(w, s, place, begin, at_end, stage, count, decays, dk, dv);
      begin -= S::kChunk;
    });
  } else {
    ring.walk(place.rows, [&](unsigned char* stage, int count) { dkdv_chunk(w, s, stage, count, dk, dv); });
  }
  if (s.segments == 1 || place.segment == 0) {
    write_state(w, s.grad_initial, s.grad_initial.data + place.sequence * s.grad_initial.head);
  }
}

// What the segment adds to R.
template <class S>
CLA_DEVICE void backward_sums(const BackwardLaunch& s, const Turn& turn, const Place& place) {
  Ring<S, 1 << kQ | 1 << kGrad> ring(s, s.slopes, place);
  Warp<S> w;
  ring.walk(place.rows, [&](unsigned char* stage, int count) {
    w.find_factors(stage, count, s.decay.row == 0);
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
    const float at_end = walk_dq<Dq>(s, segment_of(sequence_of<false>(s, head), segment, rows));
    sync_threads();
    const Turn turn{head, s.segments - 1 - segment};  // unless whole
    if (!whole && segment > 0) {
      backward_sums<Dkdv>(s, turn, segment_of(sequence_of<false>(s, head), segment, rows));
      sync_threads();
    }
    const Place place = segment_of(sequence_of<false>(s, here(head)), segment, rows);
    walk_dkdv<Dkdv>(s, place, at_end, [&](Warp<Dkdv>& w) {
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
