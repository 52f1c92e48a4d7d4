// The kernel and its launch, for one type of inputs a file: sweep_*.cu.
#pragma once

#include "sweep.cuh"

namespace cla_cuda {

// A kernel has registers for this many warps; one more, for the ones beside 128 columns, in a variant of its own.
constexpr int kMostWarps = 8;

// Chunks of 64 rows, fewer where shared memory or registers are short.
CLA_DEVICE_AND_HOST constexpr int row_blocks(int capability, int bytes, int column_blocks, int warps) {
  return warps > kMostWarps ? 1 : capability < 80 || bytes == 4 || column_blocks == 8 ? 2 : 4;
}

// The most warps of a block: 16 columns of c each, and of both parts where they share one.
constexpr int most_warps(int column_blocks, int row_blocks) {
  return row_blocks == 1 ? kMostWarps + 1 : column_blocks == 8 ? kMostWarps : 2 * column_blocks;
}
// On a multiprocessor: with all registers that a thread can have, 8 warps.
constexpr int least_blocks(int column_blocks, int row_blocks) {
  return row_blocks == 1 ? 1 : kMostWarps / most_warps(column_blocks, row_blocks);
}

template <class In, int kColumnBlocks, int kRowBlocks>
CLA_KERNEL(32 * most_warps(kColumnBlocks, kRowBlocks), least_blocks(kColumnBlocks, kRowBlocks))
sweep_kernel(CLA_PARAMETER Sweep s) {
  // Of the two other variants only the one that this architecture runs has a body.
  if constexpr (kRowBlocks == 1 || row_blocks(CLA_CAPABILITY, sizeof(In), kColumnBlocks, 1) == kRowBlocks) {
    walk_segment<In, kColumnBlocks, kRowBlocks>(s);
  }
}

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

inline int warps_of(const Sweep& s) {
  return part_warps(s.parts[0]) + (s.part_count == 2 ? part_warps(s.parts[1]) : 0);
}

template <class In, int kColumnBlocks, class Visit>
auto with_rows(const Sweep& s, int capability, const Visit& visit) {
  const int rows = row_blocks(capability, sizeof(In), kColumnBlocks, warps_of(s));
  if constexpr (kColumnBlocks == 8) {
    if (rows == 1) return visit(Constant<kColumnBlocks>{}, Constant<1>{});
  }
  if (rows == 2) return visit(Constant<kColumnBlocks>{}, Constant<2>{});
  return visit(Constant<kColumnBlocks>{}, Constant<4>{});
}

// visit(column blocks, row blocks), both as types with a value.
template <class In, class Visit>
auto with_blocks(const Sweep& s, int capability, const Visit& visit) {
  int columns = 1;
  for (int x = 0; x < s.tiles; ++x) columns = s.rows[x].columns > columns ? s.rows[x].columns : columns;
  if (columns <= 16) return with_rows<In, 1>(s, capability, visit);
  if (columns <= 32) return with_rows<In, 2>(s, capability, visit);
  if (columns <= 64) return with_rows<In, 4>(s, capability, visit);
  return with_rows<In, 8>(s, capability, visit);
}

template <class In>
int64_t Launcher<In>::shared_bytes(const Sweep& s, int capability) {
  return with_blocks<In>(s, capability, [&](auto columns, auto rows) {
    const Layout<In, 16 * columns.value, 16 * rows.value> layout{s.tiles, s.stages, s.part_count, warps_of(s),
                                                                           splits_scores<In>(s)};
    return static_cast<int64_t>(layout.total());
  });
}

template <class In>
const char* Launcher<In>::launch(const Sweep& s, int capability, void* stream) {
  return with_blocks<In>(s, capability, [&](auto columns, auto rows) {
    return launch_kernel(sweep_kernel<In, columns.value, rows.value>, s, s.heads,
                         s.only_sums ? s.segments - 1 : s.segments, 32 * warps_of(s),
                         shared_bytes(s, capability), stream);
  });
}

}  // namespace cla_cuda
