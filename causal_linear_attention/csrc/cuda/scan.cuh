// What a block of threads does: normalisers, outputs, the loop over chunks.
#pragma once

#include "state.cuh"

namespace cla::cuda {

// --- the normaliser's part ---------------------------------------------------------------------------------

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
    const In* const q = w.tile(stage, kA, 0, 0) + i * S::kPitch + column;
    float total = 0.0f;
#pragma unroll
    for (int m = 0; m < kOwn; m += kAtOnce) {
      const Bytes16 some = *reinterpret_cast<const Bytes16*>(q + m);
      const float* const z = w.z() + column + m;
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
  for (int x = 0; x < 4; ++x) {
    if (lane_row() == 0) w.z()[w.index * 16 + x / 2 * 8 + lane_column() + x % 2] = w.vector[x];
  }
}

// The inverse denominators, whose places in memory begin at `to`: a row's scores and q . z.
template <class S>
CLA_DEVICE void invert(const Warp<S>& w, float* to, int count) {
#pragma unroll
  for (int at = 0; at < S::kChunk; at += S::kThreads) {
    const int i = at + thread_index();
    if (i >= S::kChunk) break;
    float total = w.row_sums(S::kRowBlocks)[i] + w.row_sums(0)[i];
#pragma unroll
    for (int j = 1; j < S::kRowBlocks; ++j) {
      if (j <= i / 16) total += w.row_sums(j)[i];
    }
    const float inverse = 1.0f / (total + w.all.eps);
    w.inverse()[i] = inverse;
    if (i < count) to[i] = inverse;
  }
}

template <class S>
CLA_DEVICE void multiply_rows(const float* by, typename Warp<S>::Output& out) {
#pragma unroll
  for (int i = 0; i < 2 * S::kRowBlocks; ++i) {
    const float factor = by[i * 8 + lane_row()];
#pragma unroll
    for (int x = 0; x < 4; ++x) out[i / 2][x / 2][x % 2 + i % 2 * 2] *= factor;
  }
}

// out *= weights, then += slope[i] z[i], slope[i] = -(queries[i] . out[i]) weights[i].
template <class S>
CLA_DEVICE void project(Warp<S>& w, const unsigned char* stage, float* slopes, int count,
                        const typename Warp<S>::Input (&c)[S::kRowBlocks], typename Warp<S>::Output& out) {
  using Part = typename S::Part;
  constexpr int kWarps = S::kColumnBlocks;
  float* const partial = w.row_sums(0);  // (rows, warps)
  multiply_rows<S>(w.weights(stage), out);
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
    typename Warp<S>::Input queries;
    load<false, Factor::left, S::kPitch>(w.tile(stage, kQueries, i, w.index), queries);
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
      if (lane_index() % 4 == 0) partial[(i * 16 + h * 8 + lane_row()) * kWarps + w.index] = total;
    }
    sync_warp();
  }
  sync_threads();
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
      const int row = i * 16 + h * 8 + lane_row();
      float total = 0.0f;
#pragma unroll
      for (int b = 0; b < kWarps; ++b) total += partial[row * kWarps + b];
      const float slope = -total * w.weights(stage)[row];
#pragma unroll
      for (int x = 0; x < 4; ++x) out[i][x / 2][x % 2 + 2 * h] += slope * (z[x / 2][x % 2 + 2 * h] + w.vector[x]);
      if (w.index == 0 && lane_index() % 4 == 0 && row < count) slopes[row] = slope;
    }
    sync_warp();
  }
  w.add_to_vector(before);
}

// --- outputs -------------------------------------------------------------------------------------------------

// Where this lane writes its outputs: 16-bit ones by 16 bytes, or by single numbers where rows are not aligned.
template <class S>
struct Target {
  const Rows& rows;
  const int index;  // of the warp
  char* to;

  CLA_DEVICE bool in_pieces() const { return S::kAligned || rows.aligned; }
  CLA_DEVICE int row() const {
    const int lane = here(lane_index());
    return S::kBytes == 4 ? lane / 4 : in_pieces() ? lane / 2 : lane / 16;
  }
  CLA_DEVICE int own_column() const {
    const int lane = here(lane_index());
    return S::kBytes == 4 ? lane % 4 * 2 : in_pieces() ? lane % 2 * 8 : lane % 16;
  }
  CLA_DEVICE int columns_left() const { return rows.columns - index * 16 - own_column(); }

  CLA_DEVICE Target(const Warp<S>& w, int first) : rows(w.scan.out), index(w.index) {
    to = rows.data + offset_of(w.all, rows, w.head) + (first + row()) * rows.row +
         (index * 16 + own_column()) * S::kBytes;
  }
};

// 16 rows by 16 columns of 16-bit numbers, through the warp's own shared memory.
template <class S>
CLA_DEVICE void write_half(const Warp<S>& w, Target<S>& target, int count, const Sums& out) {
  using In = typename S::In;
  In* const own = reinterpret_cast<In*>(w.memory + S::kOut + w.index * S::kOutOfWarp);
#pragma unroll
  for (int x = 0; x < 8; x += 2) {
    *reinterpret_cast<uint32_t*>(own + w.row_of(x) * S::kOutPitch + w.column_of(x)) =
        pack(out[x / 4][x % 4], out[x / 4][x % 4 + 1], In{});
  }
  sync_warp();
  const int row = target.row();
  const In* const from = own + row * S::kOutPitch + target.own_column();
  const bool inside = S::kAligned || target.columns_left() > 0;
  if (target.in_pieces()) {
    if (row < count && inside) *reinterpret_cast<Bytes16*>(target.to) = *reinterpret_cast<const Bytes16*>(from);
  } else {
    for (int i = 0; i < 16 && row + i < count && inside; i += 2) {
      *reinterpret_cast<In*>(target.to + i * target.rows.row) = from[i * S::kOutPitch];
    }
  }
  target.to += 16 * target.rows.row;
  sync_warp();
}

template <class S>
CLA_DEVICE void write_float(Target<S>& target, int count, const Sums& out) {
#pragma unroll
  for (int h = 0; h < 2; ++h, target.to += 8 * target.rows.row) {
    if (target.row() + h * 8 >= count) continue;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float* const pair = reinterpret_cast<float*>(target.to) + n * 8;
      const Float2 numbers{out[n][2 * h], out[n][2 * h + 1]};
      const int left = target.columns_left() - n * 8;
      if constexpr (S::kAligned) {
        *reinterpret_cast<Float2*>(pair) = numbers;
      } else {
        if (left > 0) pair[0] = numbers.x;
        if (left > 1) pair[1] = numbers.y;
      }
    }
  }
}

template <class S>
CLA_DEVICE void write(const Warp<S>& w, Target<S>& target, int count, const typename Warp<S>::Output& out) {
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
    if constexpr (S::kBytes == 2) {
      write_half(w, target, count - i * 16, out[i]);
    } else {
      write_float(target, count - i * 16, out[i]);
    }
  }
  sync_warp();
}

// NaN in the rows of this warp's columns that a number of c which is not finite reaches, just written without it.
template <class S>
CLA_DEVICE void poison(const Warp<S>& w, const Target<S>& target, int first_of_column, int count) {
  using In = typename S::In;
  const int lane = here(lane_index()), column = w.index * 16 + lane % 16;
  char* const written = target.to - (S::kChunk + target.row()) * target.rows.row;
  In* const to = reinterpret_cast<In*>(written) - target.own_column() + lane % 16;
#pragma unroll 1
  for (int i = first_of_column; i < S::kChunk && i < count; ++i) {
    if (i % 2 != lane / 16 || column >= target.rows.columns) continue;
    *reinterpret_cast<In*>(reinterpret_cast<char*>(to) + i * target.rows.row) = not_a_number(In{});
  }
  sync_warp();
}

// --- chunks --------------------------------------------------------------------------------------------------

template <class S>
CLA_DEVICE void compute_sums(Warp<S>& w, const unsigned char* stage) {
  w.choose_boost(stage);
  w.update(stage);
  if (S::kNormaliser == Normaliser::forward) w.add_rows(stage, kB);
  if (S::kNormaliser == Normaliser::dq) w.add_rows(stage, kC);
}

// The next chunk; `count` rows are left, of which it takes what it can.
template <class S>
CLA_DEVICE void compute_chunk(Warp<S>& w, unsigned char* stage, int count, float* numbers, Target<S>& target) {
  w.choose_boost(stage);
  w.score(stage);
  if constexpr (S::kNormaliser == Normaliser::forward) sum_queries(w, stage);
  sync_threads();
  if constexpr (S::kNormaliser == Normaliser::forward) invert(w, numbers, count);
  sync_warp();
  typename Warp<S>::Output out;
  w.multiply_state(stage, out);
  typename Warp<S>::Input c[S::kRowBlocks];
  const bool dirty = w.load_c(stage, c);
  int first_dirty = S::kChunk;
  if (dirty) [[unlikely]] {
    first_dirty = w.clean(stage);
    w.load_c(stage, c);
  }
  w.add_scores(c, out);
  if (dirty) [[unlikely]] w.make_dirty(stage, first_dirty);
  if constexpr (S::kNormaliser == Normaliser::forward) {
    sync_threads();
    multiply_rows<S>(w.inverse(), out);
  } else if constexpr (S::kNormaliser == Normaliser::dq) {
    project(w, stage, numbers, count, c, out);
    if (dirty) [[unlikely]] w.poison_vector(first_dirty);
  } else if constexpr (S::kNormaliser == Normaliser::dkdv) {
    const float back = Warp<S>::kBoosted ? 1.0f / w.boost : 1.0f;
#pragma unroll
    for (int x = 0; x < 8 * S::kRowBlocks; ++x) {
      float& number = out[x / 8][x / 4 % 2][x % 4];
      number = number * back + w.vector[x / 4 % 2 * 2 + x % 2];
    }
  }
  write(w, target, count, out);
  if (dirty) [[unlikely]] poison(w, target, first_dirty, count);
  w.update(stage);
  if constexpr (S::kNormaliser == Normaliser::forward) {
    w.add_rows(stage, kB);
    publish_z(w);
  }
}

// Until the oldest stage is there for all threads and the next one to be filled no longer in use.
CLA_DEVICE void wait_for_stage(int stages) {
  if (stages == 2) {
    cp_async_wait<0>();
  } else if (stages == 3) {
    cp_async_wait<1>();
  } else if (stages == 4) {
    cp_async_wait<2>();
  }
  sync_threads();
}

// The rows of a segment, chunk by chunk.
template <class S, bool kOnlySums>
CLA_DEVICE void scan_segment(const Scans& s) {
  unsigned char* const memory = shared_memory();
  const Scan& scan = s.scan[block_index() % s.count];
  Warp<S> w(s, scan, memory);
  const int begin = w.segment * s.segment_rows;
  const int rows = s.length - begin < s.segment_rows ? s.length - begin : s.segment_rows;
  Sources<S> sources(s, scan, w.head, begin);
  int to_copy = rows;
  unsigned char *to = memory + S::kRing, *stage = to;
  unsigned char* const ring_end = to + s.stages * S::kStage;
  const auto start = [&] {
    sources.copy_chunk(to_copy, kOnlySums, to);
    to_copy -= S::kChunk;
    to = to + S::kStage == ring_end ? memory + S::kRing : to + S::kStage;
  };
  for (int x = 0; x < s.stages - 1; ++x) start();
  enter(w, kOnlySums);
  if constexpr (S::kNormaliser == Normaliser::forward) publish_z(w);
  Target<S> target(w, begin);
  // What the normaliser writes row by row: inverse denominators or slopes.
  float* numbers = S::kNormaliser == Normaliser::dq ? scan.slopes : scan.weights;
  numbers += static_cast<int64_t>(w.head) * s.length + begin;
  for (int left = rows; left > 0; left -= S::kChunk, numbers += S::kChunk) {
    wait_for_stage(s.stages);
    start();
    if (s.stages == 1) {
      cp_async_wait<0>();
      sync_threads();
    }
    sync_warp();
    if constexpr (kOnlySums) {
      compute_sums(w, stage);
    } else {
      compute_chunk(w, stage, left, numbers, target);
    }
    stage = stage + S::kStage == ring_end ? memory + S::kRing : stage + S::kStage;
  }
  leave(w, kOnlySums);
}

}  // namespace cla::cuda
