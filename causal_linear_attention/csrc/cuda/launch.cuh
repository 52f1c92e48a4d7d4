// Instances of a kernel, by width and alignment of the heads.
#pragma once

#include <initializer_list>

#include "plan.h"
#include "state.cuh"

namespace cla::cuda {

// What `plan` must know of kKernel, whose shared memory is laid out as S75 or S80 says, by compute capability.
template <auto kKernel, class L, class S75, class S80>
struct Instance {
  static constexpr int kThreads = S80::kThreads;

  static int blocks(const Device& device, int stages, int64_t shared_bytes) {
    return resident_blocks<kKernel>(device, kThreads, stages, shared_bytes);
  }
  static const char* launch(const L& s, const Device& device, int64_t shared_bytes, void* stream) {
    return launch_kernel<kKernel>(s, device, s.heads, s.segments, kThreads, shared_bytes, stream);
  }
  static Kernel<L> kernel(const Device& device) {
    constexpr int64_t kSums = kSumsOfThread<S80::kColumnBlocks> * kThreads;
    return device.capability < 80 ? Kernel<L>{{S75::kRing, S75::kStage, kSums, blocks}, launch}
                                  : Kernel<L>{{S80::kRing, S80::kStage, kSums, blocks}, launch};
  }
};

// Calls visit.template operator()<column blocks, aligned>() for the narrowest instance that holds these rows.
template <class Visit>
auto with_columns(std::initializer_list<const Rows*> arrays, const Visit& visit) {
  int columns = 1;
  for (const Rows* rows : arrays) columns = rows->columns > columns ? rows->columns : columns;
  bool exact = columns == 64 || columns == 128;
  for (const Rows* rows : arrays) exact = exact && rows->aligned && rows->columns == columns;
  if (columns <= 16) return visit.template operator()<1, false>();
  if (columns <= 32) return visit.template operator()<2, false>();
  if (columns <= 64) return exact ? visit.template operator()<4, true>() : visit.template operator()<4, false>();
  return exact ? visit.template operator()<8, true>() : visit.template operator()<8, false>();
}

}  // namespace cla::cuda
