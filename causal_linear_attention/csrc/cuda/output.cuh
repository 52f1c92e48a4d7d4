// A warp's 16 columns of an output, to memory.
#pragma once

#include "warp.cuh"

namespace cla::cuda {

// Where this lane writes its outputs: 16-bit ones by 16 bytes, or by single numbers where rows are not aligned.
template <class S>
struct Target {
  const Rows& rows;
  const int column;  // the warp's first
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
  CLA_DEVICE int columns_left() const { return rows.columns - column - own_column(); }

  CLA_DEVICE Target(const Launch& s, const Rows& of, const Place& place)
      : rows(of), column(place.column + warp_index() * 16) {
    to = rows.data + offset_of(s, rows, place.head) + (first_row<S>(place) + row()) * rows.row +
         (column + own_column()) * S::kBytes;
  }
};

// Every row multiplied by its own number.
template <class S>
CLA_DEVICE void multiply_rows(const float* by, typename Warp<S>::Output& out) {
#pragma unroll
  for (int i = 0; i < 2 * S::kRowBlocks; ++i) {
    const float factor = by[i * 8 + lane_row()];
#pragma unroll
    for (int x = 0; x < 4; ++x) out[i / 2][x / 2][x % 2 + i % 2 * 2] *= factor;
  }
}

// 16 rows by 16 columns of 16-bit numbers, through the warp's own shared memory.
template <class S>
CLA_DEVICE void write_half(const Warp<S>& w, Target<S>& target, int count, const Sums& out) {
  using In = typename S::In;
  In* const own = reinterpret_cast<In*>(w.memory + S::kOut + w.index * S::kOutOfWarp);
#pragma unroll
  for (int x = 0; x < 8; x += 2) {
    store_pair(out[x / 4][x % 4], out[x / 4][x % 4 + 1], own + w.row_of(x) * S::kOutPitch + w.column_of(x));
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
      const int left = target.columns_left() - n * 8;
      if constexpr (S::kAligned) {
        store_pair(out[n][2 * h], out[n][2 * h + 1], pair);
      } else {
        if (left > 0) pair[0] = out[n][2 * h];
        if (left > 1) pair[1] = out[n][2 * h + 1];
      }
    }
  }
}

template <class S>
CLA_DEVICE void multiply_all(float by, typename Warp<S>::Output& out) {
#pragma unroll
  for (int i = 0; i < S::kRowBlocks; ++i) {
#pragma unroll
    for (int x = 0; x < 8; ++x) out[i][x / 4][x % 4] *= by;
  }
}

// The next chunk of this warp's columns: the next rows, or in dkdv those before.
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
  if constexpr (S::kReverse) target.to -= 2 * S::kChunk * target.rows.row;
  sync_warp();
}

// NaN in the rows of this warp's columns that a number of c which is not finite reaches, just written without it.
template <class S>
CLA_DEVICE void poison(const Warp<S>& w, const unsigned char* stage, const Target<S>& target,
                       const typename Warp<S>::Dirty& dirty, int count) {
  mark_rare();
  using In = typename S::In;
  const int lane = here(lane_index()), column = w.column() + lane % 16;
  char* const written = target.to - ((S::kReverse ? -S::kChunk : S::kChunk) + target.row()) * target.rows.row;
  In* const to = reinterpret_cast<In*>(written) - target.own_column() + lane % 16;
  auto write = [&](int i) {
    *reinterpret_cast<In*>(reinterpret_cast<char*>(to) + i * target.rows.row) = not_a_number(In{});
  };
  if constexpr (S::kDecayed) {
    bool reached = false;
#pragma unroll 1
    for (int n = 0; n < S::kChunk; ++n) {
      const int i = S::kReverse ? S::kChunk - 1 - n : n;
      const bool resets = w.decays(stage)[i] == 0.0f;  // also of what lies beyond the last row
      reached = (reached && (S::kReverse || !resets)) || dirty.has(i);
      if (reached && i % 2 == lane / 16 && i < count && column < target.rows.columns) write(i);
      if (S::kReverse && resets) reached = false;
    }
  } else {
#pragma unroll 1
    for (int i = lane / 16; i < S::kChunk && i < count; i += 2) {
      if (w.reached(i, dirty) && column < target.rows.columns) write(i);
    }
  }
  sync_warp();
}

}  // namespace cla::cuda
