// What a block of threads does: normalisers, outputs, the loop over chunks.
#pragma once

#include "walk.cuh"

namespace cla_cuda {

// out[m][i] /= denominator[i] + eps, the denominators being the last column of c's outputs.
template <class W>
CLA_DEVICE void divide(const W& w, int64_t first, int count, Sums (&out)[W::kRows / 16]) {
  const int ones = w.part.width - 1 - w.block * 16;
  float* const inverse = w.numbers(0);
  if (ones >= 0 && ones < 16 && ones % 8 == lane_row()) {
#pragma unroll
    for (int x = 0; x < W::kRows / 4; ++x) {
      const float top = out[x / 4][x / 2 % 2][x % 2], bottom = out[x / 4][x / 2 % 2][x % 2 + 2];
      inverse[x / 2 * 8 + lane_column() + x % 2] = 1.0f / ((ones < 8 ? top : bottom) + w.s.eps);
    }
  }
  sync_threads();
#pragma unroll
  for (int x = 0; x < W::kRows / 2; ++x) {
    out[x / 8][x / 4 % 2][x % 4] *= inverse[x / 4 * 8 + lane_column() + x % 2];
  }
  for (int i = thread_index(); i < count; i += block_threads()) {
    w.s.weights[row_index(w.s, first + i)] = inverse[i];
  }
}

// z[m][i] = the sum of c's rows up to i and of w.vector, for the rows of piece `row`.
template <class W, int kRowBlocks>
CLA_DEVICE void sum_rows(const W& w, int row, const typename W::Input (&c)[kRowBlocks], Sums& z) {
  Operand<1> triangle, ones;
  prefix<typename W::Factor>(true, triangle);
  prefix<typename W::Factor>(false, ones);
#pragma unroll
  for (int x = 0; x < 8; ++x) z[x / 4][x % 4] = w.vector[x % 4 / 2];
#pragma unroll
  for (int j = 0; j < kRowBlocks; ++j) {
    if (j <= row) multiply<typename W::Factor>(z, c[j], row == j ? triangle : ones);
  }
}

// w.vector becomes the last row of the last piece.
template <class W>
CLA_DEVICE void advance_vector(W& w, const Sums& last) {
#pragma unroll
  for (int h = 0; h < 2; ++h) w.vector[h] = shuffle_from(last[1][2 * h + 1], lane_index() / 4 * 4 + 3);
}

// out *= weights, then += slope[i] z[i], slope[i] = -(queries[i] . out[i]) weights[i].
template <class In, class W, int kRowBlocks>
CLA_DEVICE void project(W& w, int stage, int64_t first, int count, const typename W::Input (&c)[kRowBlocks],
                        Sums (&out)[kRowBlocks]) {
  const In* const queries = head_rows<In>(w.s, w.s.queries, first);
  const float* const weights = w.weights(stage);
#pragma unroll
  for (int x = 0; x < 4 * kRowBlocks; ++x) {
    const int i = x / 2 * 8 + lane_column() + x % 2;
    float total = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& value = out[x / 4][x / 2 % 2][x % 2 + 2 * h];
      value *= weights[i];
      const int m = w.column_of(2 * h);
      if (i < count && m < w.part.width) total += number(queries[i * w.s.queries.row + m]) * value;
    }
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) total += shuffle_xor(total, mask);
    if (lane_row() == 0) w.numbers(w.block)[i] = total;
  }
  sync_threads();
#pragma unroll
  for (int row = 0; row < kRowBlocks; ++row) {
    Sums z;
    sum_rows(w, row, c, z);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int i = row * 16 + x / 2 * 8 + lane_column() + x % 2;
      float total = 0.0f;
      for (int b = 0; b < part_warps(w.part); ++b) total += w.numbers(b)[i];
      const float slope = -total * weights[i];
#pragma unroll
      for (int h = 0; h < 2; ++h) out[row][x / 2][x % 2 + 2 * h] += slope * z[x / 2][x % 2 + 2 * h];
      if (w.block == 0 && lane_row() == 0 && i < count) w.s.slopes[row_index(w.s, first + i)] = slope;
    }
    if (row == kRowBlocks - 1) advance_vector(w, z);
  }
}

template <class In, class W, int kRowBlocks>
CLA_DEVICE void write(const W& w, int64_t first, int count, const Sums (&out)[kRowBlocks]) {
  const Rows& rows = w.part.out;
  In* const to = head_rows<In>(w.s, rows, first);
  if constexpr (sizeof(In) == 4) {
#pragma unroll
    for (int x = 0; x < 8 * kRowBlocks; ++x) {
      const int i = x / 4 * 8 + lane_column() + x % 2, m = w.column_of(x % 4);
      if (i < count && m < rows.columns) to[i * rows.row + m] = out[x / 8][x / 4 % 2][x % 4];
    }
  } else {
    constexpr int kPitch = W::Memory::kOutPitch;
    In* const own = reinterpret_cast<In*>(w.memory + w.layout.out(w.warp));
#pragma unroll
    for (int x = 0; x < 8 * kRowBlocks; ++x) {
      const int i = x / 4 * 8 + lane_column() + x % 2, m = lane_row() + x % 4 / 2 * 8;
      own[i * kPitch + m].bits = static_cast<uint16_t>(pack(out[x / 8][x / 4 % 2][x % 4], 0.0f, In{}));
    }
    sync_warp();
    const int columns = rows.columns - w.block * 16;
    if (rows.aligned) {
      for (int at = lane_index(); at < 2 * count; at += 32) {
        const int i = at / 2, m = at % 2 * 8;
        if (m >= columns) continue;
        *reinterpret_cast<Bytes16*>(to + i * rows.row + w.block * 16 + m) =
            *reinterpret_cast<const Bytes16*>(own + i * kPitch + m);
      }
    } else {
      for (int at = lane_index(); at < 16 * count; at += 32) {
        if (at % 16 < columns) to[at / 16 * rows.row + w.block * 16 + at % 16] = own[at / 16 * kPitch + at % 16];
      }
    }
  }
}

template <class In, class W, int kRowBlocks = W::kRows / 16>
CLA_DEVICE void compute_chunk(W& w, int stage, int64_t first, int count) {
  if (!w.s.only_sums) {
    w.choose_boost(stage);
    w.score(stage);
    sync_threads();
  }
  typename W::Input c[kRowBlocks];
#pragma unroll
  for (int j = 0; j < kRowBlocks; ++j) w.load_c(stage, j, c[j]);
  int first_bad[2];
  const bool dirty = w.clean(c, first_bad);
  if (!w.s.only_sums) {
    Sums out[kRowBlocks];
    w.triangle(c, out);
    if (dirty) W::poison(first_bad, out);
    w.add_state(stage, out);
    if (w.normaliser() == Normaliser::forward) divide(w, first, count, out);
    if (w.normaliser() == Normaliser::queries) {
      project<In>(w, stage, first, count, c, out);
    } else if (w.normaliser() == Normaliser::values && w.part.vector) {
#pragma unroll
      for (int x = 0; x < 8 * kRowBlocks; ++x) out[x / 8][x / 4 % 2][x % 4] += w.vector[x % 4 / 2];
    }
    write<In>(w, first, count, out);
  } else if (w.normaliser() == Normaliser::queries) {
    Sums z;
    sum_rows(w, kRowBlocks - 1, c, z);
    advance_vector(w, z);
  } else if (w.normaliser() == Normaliser::values) {
    w.choose_boost(stage);
  }
  w.update(stage, c);
  if (dirty) w.poison_state(first_bad);
}

CLA_DEVICE void wait_for_stage(int stages) {
  if (stages == 2) {
    wait_for_copies<0>();
  } else if (stages == 3) {
    wait_for_copies<1>();
  } else {
    wait_for_copies<2>();
  }
  sync_threads();
}

template <class In, int kColumnBlocks, int kRowBlocks>
CLA_DEVICE void walk_segment(const Sweep& s) {
  using W = Walk<In, kColumnBlocks, kRowBlocks>;
  const typename W::Memory layout{s.tiles, s.stages, s.part_count, block_threads() / 32, splits_scores<In>(s)};
  unsigned char* const memory = shared_memory();
  const int64_t begin = segment_index() * s.segment_rows;
  const int64_t end = begin + s.segment_rows < s.length ? begin + s.segment_rows : s.length;
  const int64_t chunks = end > begin ? (end - begin + W::kRows - 1) / W::kRows : 0;
  auto count_of = [&](int64_t first) { return static_cast<int>(end - first < W::kRows ? end - first : W::kRows); };
  auto start = [&](int64_t chunk) {
    const int64_t first = begin + chunk * W::kRows;
    if (chunk < chunks) load_stage(s, layout, static_cast<int>(chunk % s.stages), first, count_of(first), memory);
    end_copy_group();
  };
  clear_padding(s, layout, memory);
  for (int chunk = 0; chunk < s.stages - 1; ++chunk) start(chunk);
  W w(s, layout, memory);
  w.enter();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (s.stages == 1) {
      sync_threads();
      start(chunk);
      wait_for_copies<0>();
      sync_threads();
    } else {
      wait_for_stage(s.stages);
      start(chunk + s.stages - 1);
    }
    const int64_t first = begin + chunk * W::kRows;
    compute_chunk<In>(w, static_cast<int>(chunk % s.stages), first, count_of(first));
  }
  w.leave();
}

}  // namespace cla_cuda
