// How heads are cut up for a device, and kernels launched.
#pragma once

#include "attention.h"
#include "scan.h"

namespace cla::cuda {

// What a plan must know of one instance of a kernel.
struct Needs {
  int64_t fixed_bytes = 0, stage_bytes = 0;  // of shared memory
  int64_t sums = 0;                          // float32 numbers that a segment's sums take
  // Blocks that a multiprocessor holds at once; 0 if it holds none.
  int (*blocks)(const Device&, int stages, int64_t shared_bytes) = nullptr;
};
template <class L>
struct Kernel {
  Needs needs;
  const char* (*launch)(const L&, const Device&, int64_t shared_bytes, void* stream) = nullptr;
};

// Of one launch or, if the heads are cut into segments, two.
struct Plan {
  int64_t shared_bytes = 0;
  int64_t sums = 0;  // float32 numbers of scratch memory
  bool fits = false;
};

// Chooses the launch's stages and segments.
Plan plan(Launch&, const Needs&, const Device&);

constexpr const char* kTooLarge = "the heads do not fit this GPU's shared memory";

template <class L>
const char* launch(L s, const Plan& p, const Kernel<L>& kernel, const Device& device, float* sums, void* stream) {
  if (!p.fits) return kTooLarge;
  if (s.heads == 0) return nullptr;
  s.sums = sums;
  if (s.segments > 1) {
    s.pass = Pass::first;
    if (const char* const error = kernel.launch(s, device, p.shared_bytes, stream)) return error;
    s.pass = Pass::second;
  }
  return kernel.launch(s, device, p.shared_bytes, stream);
}

// What Problem's arrays are to a launch. The warps share out the columns of v in forward, those of q and k in
// backward.
Rows rows_of(const Problem&, const Array&, int64_t columns);
State state_of(const Problem&, const void* data, bool backward);
void fill(Launch&, const Problem&, const void* inverse, void* kept, bool backward);

}  // namespace cla::cuda
