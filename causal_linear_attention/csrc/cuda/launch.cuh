// The kernel and its instances.
#pragma once

#include <initializer_list>

#include "plan.h"
#include "scan.cuh"

namespace cla::cuda {

// Blocks that must fit a multiprocessor by their registers: 168 a thread, 128 for heads of more than 64 columns.
constexpr int least_blocks(int bytes, int column_blocks) {
  return column_blocks < 8 ? 12 / column_blocks : bytes == 2 ? 2 : 1;
}

template <class In, Normaliser kNormaliser, int kColumnBlocks, bool kAligned, bool kOnlySums>
CLA_KERNEL(32 * kColumnBlocks, least_blocks(sizeof(In), kColumnBlocks))
scan_kernel(CLA_PARAMETER Scans s) {
  scan_segment<Shape<In, kNormaliser, kColumnBlocks, kAligned>, kOnlySums>(s);
}

template <class In, Normaliser kNormaliser, int kColumnBlocks, bool kAligned>
struct Instance {
  static constexpr auto kScan = scan_kernel<In, kNormaliser, kColumnBlocks, kAligned, false>;
  static constexpr auto kSums = scan_kernel<In, kNormaliser, kColumnBlocks, false, true>;
  static constexpr int kThreads = 32 * kColumnBlocks;

  static int blocks(const Device& device, int stages, int64_t shared_bytes) {
    return resident_blocks<kScan>(device, kThreads, stages, shared_bytes);
  }
  static const char* launch(const Scans& s, const Device& device, int64_t shared_bytes, bool only_sums,
                            void* stream) {
    const int64_t blocks = int64_t{s.heads} * s.count;
    if (only_sums) return launch_kernel<kSums>(s, device, blocks, s.segments - 1, kThreads, shared_bytes, stream);
    return launch_kernel<kScan>(s, device, blocks, s.segments, kThreads, shared_bytes, stream);
  }
  template <int kCapability>
  static Kernel kernel() {
    using S = Shape<In, kNormaliser, kColumnBlocks, kAligned, kCapability>;
    return {S::kChunk, S::kRing, S::kStage, kSumsOfThread<kColumnBlocks> * kThreads, blocks, launch};
  }
};

template <class In, Normaliser kNormaliser, int kColumnBlocks, bool kAligned>
Kernel instance(const Device& device) {
  using Found = Instance<In, kNormaliser, kColumnBlocks, kAligned>;
  return device.capability < 80 ? Found::template kernel<75>() : Found::template kernel<80>();
}

// True if every array's rows have exactly these columns and are aligned.
inline bool exact(const Scans& s, int columns) {
  for (int x = 0; x < s.count; ++x) {
    const Scan& one = s.scan[x];
    for (const Rows* rows : {&one.a, &one.b, &one.c, &one.out, &one.queries}) {
      if (rows->data != nullptr && !(rows->aligned && rows->columns == columns)) return false;
    }
  }
  return true;
}

template <class In, Normaliser kNormaliser>
Kernel instance_for(const Scans& s, const Device& device) {
  int columns = 1;
  for (int x = 0; x < s.count; ++x) {
    for (const int some : {s.scan[x].depth, s.scan[x].width}) columns = some > columns ? some : columns;
  }
  if (columns <= 16) return instance<In, kNormaliser, 1, false>(device);
  if (columns <= 32) return instance<In, kNormaliser, 2, false>(device);
  if (columns <= 64) {
    return exact(s, 64) ? instance<In, kNormaliser, 4, true>(device) : instance<In, kNormaliser, 4, false>(device);
  }
  return exact(s, 128) ? instance<In, kNormaliser, 8, true>(device) : instance<In, kNormaliser, 8, false>(device);
}

}  // namespace cla::cuda
