// The decays of a chunk of rows: e[t], by which row t multiplies the state before it is added.
//
// Between row j and a later row i lie the factors e[j + 1] ... e[i], all of which a term of j has in what i sees. For
// each block of 16 rows a table in shared memory holds these products, and in a column of its own those from the
// block's first row on; factors between rows of two blocks are products of the earlier block's last row, of that
// column of the later block, and of all the blocks between. They are products, never quotients or differences:
// nothing overflows that the sums do not, and a decay of 0 hides all that lies before it, be it a NaN.
#pragma once

#include "copy.cuh"

namespace cla::cuda {

// x multiplied by a factor; what a factor of 0 hides may be anything.
CLA_DEVICE float hidden(float factor, float x) { return factor == 0.0f ? 0.0f : factor * x; }
CLA_DEVICE float product(float x, float y) { return x == 0.0f || y == 0.0f ? 0.0f : x * y; }

// Rows of a column, at most 64.
struct RowSet {
  uint64_t bits = 0;
  CLA_DEVICE bool has(int row) const { return (bits >> row & 1u) != 0u; }
  CLA_DEVICE void add(int row) { bits |= uint64_t{1} << row; }
};

template <class S>
struct Factors {
  static constexpr int kBefore = 16, kPitch = S::kFactorPitch, kBlocks = S::kRowBlocks;
  float* const table;

  // Of row i of a block what row j of it has; j = kBefore for what lies before the block.
  CLA_DEVICE float within(int block, int i, int j) const { return table[(block * 16 + i) * kPitch + j]; }
  // Of all blocks after `earlier` and before `later`.
  CLA_DEVICE float between(int earlier, int later) const {
    float all = 1.0f;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block > earlier && block < later) all = product(all, within(block, 15, kBefore));
    }
    return all;
  }
  CLA_DEVICE float total() const { return between(-1, kBlocks); }
  // From before the chunk to a row of it, and from a row to the chunk's end.
  CLA_DEVICE float since_start(int row) const {
    return product(between(-1, row / 16), within(row / 16, row % 16, kBefore));
  }
  CLA_DEVICE float to_end(int row) const { return product(within(row / 16, 15, row % 16), between(row / 16, kBlocks)); }
  // What a row has of the state that the chunk begins with, and the state that it ends with of a row. `Reverse` jobs
  // begin at the end.
  CLA_DEVICE float of_state(int row) const { return S::kReverse ? to_end(row) : since_start(row); }
  CLA_DEVICE float of_row(int row) const { return S::kReverse ? since_start(row) : to_end(row); }

  // Makes the tables from e[row] for the chunk's `count` rows; whether one is 0. A barrier must follow.
  CLA_DEVICE bool fill(const float* e, int count) const {
    bool resets = false;
    for (int at = thread_index(); at < kBlocks * 32; at += S::kThreads) {  // a warp for each block
      const int block = at / 32, column = at % 32;
      if (column > kBefore) continue;
      float all = column == kBefore ? 1.0f : 0.0f;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int row = block * 16 + i;
        const float factor = row < count ? e[row] : 1.0f;
        resets = resets || factor == 0.0f;
        all = i == column ? 1.0f : product(factor, all);
        table[row * kPitch + column] = all;
      }
    }
    sync_warp();
    return resets;
  }

  // Tile (row, column) of P.
  CLA_DEVICE void apply(int row, int column, Sums& scores) const {
    const int later = S::kReverse ? column : row, earlier = S::kReverse ? row : column;
    const float blocks = between(earlier, later);
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int of_row = lane_row() + x % 4 / 2 * 8, of_column = x / 4 * 8 + lane_column() + x % 2;
      const int i = S::kReverse ? of_column : of_row, j = S::kReverse ? of_row : of_column;
      float factor;
      if (row == column) {
        factor = within(row, i, j);
      } else {
        factor = product(product(blocks, within(later, i, kBefore)), within(earlier, 15, j));
      }
      scores[x / 4][x % 4] = hidden(factor, scores[x / 4][x % 4]);
    }
  }
};

}  // namespace cla::cuda
