// The instances of a family's kernel for one type, by width and alignment of the heads.
#pragma once

#include "launch.cuh"
#include "lookback.cuh"

namespace cla::cuda {

// One instance of a family's kernel, as `plan` and `launch` see it.
template <class Family, class In, bool kNormalize, int kColumnBlocks, bool kAligned>
struct Instance {
  using L = typename Family::L;
  template <int kCapability>
  using S = Shape<In, Family::kJob, kNormalize, kColumnBlocks, kAligned, Family::kDecayed, kCapability>;
  static constexpr auto kKernel = Family::template kKernel<In, kNormalize, kColumnBlocks, kAligned>;
  static constexpr int kThreads = S<80>::kThreads;

  static int blocks(const Device& device, int stages, int64_t shared_bytes) {
    return resident_blocks<kKernel>(device, kThreads, stages, shared_bytes);
  }
  static const char* launch(const L& s, const Device& device, int64_t shared_bytes, void* stream) {
    return launch_kernel<kKernel>(s, device, int64_t{s.heads} * s.segments, 1, kThreads, shared_bytes, stream);
  }
  static Kernel<L> kernel(const Device& device) {
    constexpr int64_t kSums = S<80>::kSums * kThreads;
    // Of what it reads and writes, a segment of the fused backward pass has less again than one of a single output.
    constexpr double kCut = S<80>::kBackward && !S<80>::kWide ? 1.2 : 1.5;
    return device.capability < 80 ? Kernel<L>{{S<75>::kRing, S<75>::kStage, kSums, kCut, blocks}, launch}
                                  : Kernel<L>{{S<80>::kRing, S<80>::kStage, kSums, kCut, blocks}, launch};
  }
};

// Calls visit.template operator()<column blocks, aligned>() for the narrowest instance that holds these rows. Wide heads
// have none with decays.
template <class Family, class In, class Visit>
auto with_columns(std::initializer_list<const Rows*> arrays, const Visit& visit) {
  int columns = 1;
  for (const Rows* rows : arrays) columns = rows->columns > columns ? rows->columns : columns;
  bool exact = columns == 64 || columns == 128 || columns == 256;
  for (const Rows* rows : arrays) exact = exact && rows->aligned && rows->columns == columns;
  if (columns <= 16) return visit.template operator()<1, false>();
  if (columns <= 32) return visit.template operator()<2, false>();
  if (columns <= 64) return exact ? visit.template operator()<4, true>() : visit.template operator()<4, false>();
  if constexpr (sizeof(In) == 2 && !Family::kDecayed) {
    if (columns > kColumnsOfBlock) {
      return exact ? visit.template operator()<16, true>() : visit.template operator()<16, false>();
    }
  }
  return exact ? visit.template operator()<8, true>() : visit.template operator()<8, false>();
}

template <class Family, class In>
Kernel<typename Family::L> kernel_of_type(const Problem& p, std::initializer_list<const Rows*> arrays,
                                          const Device& device) {
  return with_columns<Family, In>(arrays, [&]<int kColumnBlocks, bool kAligned>() {
    return p.normalize ? Instance<Family, In, true, kColumnBlocks, kAligned>::kernel(device)
                       : Instance<Family, In, false, kColumnBlocks, kAligned>::kernel(device);
  });
}

}  // namespace cla::cuda
