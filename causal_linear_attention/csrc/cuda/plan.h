// How scans are cut up for a device, and launched.
#pragma once

#include "attention.h"
#include "scan.h"

namespace cla::cuda {

// One instance of the kernel in scan.cuh: what `plan` must know of it.
struct Kernel {
  int chunk = 0;                             // rows
  int64_t fixed_bytes = 0, stage_bytes = 0;  // of shared memory
  int64_t sums = 0;                          // float32 numbers that a segment's sums take
  // Blocks that a multiprocessor holds at once; 0 if it holds none.
  int (*blocks)(const Device&, int stages, int64_t shared_bytes) = nullptr;
  const char* (*launch)(const Scans&, const Device&, int64_t shared_bytes, bool only_sums, void* stream) = nullptr;
};

// The instance for these scans, by the normaliser's place: without one, forward_kernel serves all of them.
Kernel forward_kernel(const Scans&, Dtype, bool normalize, const Device&);
Kernel backward_kernel(const Scans&, Dtype, Normaliser, const Device&);

struct Plan {
  Kernel kernel;
  Scans scans;
  int64_t shared_bytes = 0;
  int64_t sums = 0;  // float32 numbers of scratch memory
  bool fits = false;
};

Plan plan(const Scans&, const Kernel&, const Device&);
const char* launch(Plan, const Device&, float* sums, void* stream);

// What Problem's arrays are to a scan.
Rows rows_of(const Problem&, const Array&, int64_t columns, bool reverse);
State state_of(const Problem&, const void* data, bool transposed);
Scans scans_of(const Problem&);

constexpr const char* kTooLarge = "the heads do not fit this GPU's shared memory";

}  // namespace cla::cuda
