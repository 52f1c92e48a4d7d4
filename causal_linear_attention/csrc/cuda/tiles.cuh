// Shared memory of a block, and the copies that fill it: a ring of stages, each with a chunk of every array.
#pragma once

#include "operands.cuh"
#include "sweep.h"

namespace cla_cuda {

// Where everything lies in shared memory, in bytes, for chunks of kRows rows and arrays of kColumns columns.
template <class In, int kColumns, int kRows>
struct Layout {
  // Rows start in different banks, at multiples of 16 bytes.
  static constexpr int kPitch = kColumns + 8, kScorePitch = kRows + 8, kOutPitch = 16 + 8;
  static constexpr int kTile = kRows * kPitch * static_cast<int>(sizeof(In));
  static constexpr int kScores = kRows * kScorePitch * static_cast<int>(sizeof(In));
  // What a warp passes its 16-bit outputs through; float32 goes straight to where it belongs.
  static constexpr int kOut = sizeof(In) == 2 ? kRows * kOutPitch * 2 : 0;
  static constexpr int kNumbers = kRows * 4;  // one float32 a row

  int tiles, stages, parts, warps;
  bool split_scores;  // in two arrays
  CLA_DEVICE_AND_HOST int stage_bytes() const { return tiles * kTile + 2 * kNumbers; }
  CLA_DEVICE_AND_HOST int tile(int stage, int x) const { return stage * stage_bytes() + x * kTile; }
  CLA_DEVICE_AND_HOST int weights(int stage) const { return stage * stage_bytes() + tiles * kTile; }
  CLA_DEVICE_AND_HOST int slopes(int stage) const { return weights(stage) + kNumbers; }
  CLA_DEVICE_AND_HOST int scores(int part, int which) const {
    return stages * stage_bytes() + (which * parts + part) * kScores;
  }
  CLA_DEVICE_AND_HOST int out(int warp) const { return scores(0, split_scores ? 2 : 1) + warp * kOut; }
  // Denominators, or each warp's part of queries[i] . out[i].
  CLA_DEVICE_AND_HOST int numbers(int warp) const { return out(warps) + warp * kNumbers; }
  CLA_DEVICE_AND_HOST int total() const { return numbers(warps); }
};

// The rest of a 16-bit score would not average out under a normaliser, where large sums cancel.
template <class In>
CLA_DEVICE_AND_HOST bool splits_scores(const Sweep& s) {
  return sizeof(In) == 2 && s.normaliser != Normaliser::none;
}

// Warps of a part: 16 columns of c each.
CLA_DEVICE_AND_HOST int part_warps(const Part& part) { return (part.width + 15) / 16; }

// Index of row i's weight or slope in an array (heads, length).
CLA_DEVICE int64_t row_index(const Sweep& s, int64_t i) {
  return head_index() * s.length + (s.reverse ? s.length - 1 - i : i);
}

template <class In>
CLA_DEVICE In* head_rows(const Sweep& s, const Rows& x, int64_t first) {
  const int64_t batch = head_index() / s.heads_of_a_batch, head = head_index() % s.heads_of_a_batch;
  return reinterpret_cast<In*>(x.data) + batch * x.batch + head * x.head + first * x.row;
}

template <class In, int kPitch, int kRows>
CLA_DEVICE void load_tile(const Sweep& s, const Rows& x, int64_t first, int count, In* to) {
  const In* const from = head_rows<In>(s, x, first);
  if (x.aligned) {
    constexpr int kAtOnce = 16 / static_cast<int>(sizeof(In));
    const int pieces = x.columns / kAtOnce;
    for (int at = thread_index(); at < kRows * pieces; at += block_threads()) {
      const int i = at / pieces, column = at % pieces * kAtOnce;
      const bool wanted = i < count;
      start_copy<16>(to + i * kPitch + column, from + (wanted ? i : 0) * x.row + column, wanted);
    }
  } else {
    for (int at = thread_index(); at < kRows * x.columns; at += block_threads()) {
      const int i = at / x.columns, column = at % x.columns;
      to[i * kPitch + column] = i < count ? from[i * x.row + column] : In{};
    }
  }
}

template <int kRows>
CLA_DEVICE void load_numbers(const Sweep& s, const float* from, int64_t first, int count, float* to) {
  for (int i = thread_index(); i < kRows; i += block_threads()) {
    start_copy<4>(to + i, from + row_index(s, first + (i < count ? i : 0)), i < count);
  }
}

// Starts the copies of rows [first, first + count) into a stage; rows beyond become zero.
template <class In, int kColumns, int kRows>
CLA_DEVICE void load_stage(const Sweep& s, const Layout<In, kColumns, kRows>& layout, int stage, int64_t first,
                           int count, unsigned char* memory) {
  constexpr int kPitch = kColumns + 8;
  for (int x = 0; x < s.tiles; ++x) {
    bool wanted = !s.only_sums;
    for (int p = 0; p < s.part_count; ++p) wanted |= s.parts[p].b == x || s.parts[p].c == x;
    In* const to = reinterpret_cast<In*>(memory + layout.tile(stage, x));
    if (wanted) load_tile<In, kPitch, kRows>(s, s.rows[x], first, count, to);
  }
  if (s.normaliser == Normaliser::queries || s.normaliser == Normaliser::values) {
    load_numbers<kRows>(s, s.weights, first, count, reinterpret_cast<float*>(memory + layout.weights(stage)));
  }
  if (s.normaliser == Normaliser::values) {
    load_numbers<kRows>(s, s.slopes, first, count, reinterpret_cast<float*>(memory + layout.slopes(stage)));
  }
}

// Columns that no copy ever writes are zero once and for all.
template <class In, int kColumns, int kRows>
CLA_DEVICE void clear_padding(const Sweep& s, const Layout<In, kColumns, kRows>& layout, unsigned char* memory) {
  constexpr int kPitch = kColumns + 8;
  for (int x = 0; x < s.tiles; ++x) {
    const int columns = s.rows[x].columns, padding = kPitch - columns;
    for (int at = thread_index(); at < layout.stages * kRows * padding; at += block_threads()) {
      const int stage = at / (kRows * padding), i = at / padding % kRows;
      In* const to = reinterpret_cast<In*>(memory + layout.tile(stage, x));
      to[i * kPitch + columns + at % padding] = In{};
    }
  }
}

}  // namespace cla_cuda
