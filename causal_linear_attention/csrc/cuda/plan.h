// How heads are cut up for a device, and kernels launched.
#pragma once

#include "attention.h"
#include "scan.h"

namespace cla::cuda {

// What a plan must know of one instance of a kernel.
struct Needs {
  int64_t fixed_bytes = 0, stage_bytes = 0;  // of shared memory
  int64_t sums = 0;                          // float32 numbers that a segment's sum takes
  double cut = 1.5;                          // times as long that a row of a segment takes as one of a whole head
  // Blocks that a multiprocessor holds at once; 0 if it holds none.
  int (*blocks)(const Device&, int stages, int64_t shared_bytes) = nullptr;
};
template <class L>
struct Kernel {
  Needs needs;
  const char* (*launch)(const L&, const Device&, int64_t shared_bytes, void* stream) = nullptr;
};

struct Plan {
  int64_t shared_bytes = 0;
  int64_t tickets = 0, sums = 0;  // int32 and float32 numbers of scratch memory
  bool fits = false;
};

// Chooses the launch's stages and segments.
Plan plan(Launch&, const Needs&, const Device&);

constexpr const char* kTooLarge = "the heads do not fit this GPU's shared memory";

// What Problem's arrays are to a launch. The warps share out the columns of v in forward, those of q and k in
// backward.
Rows rows_of(const Problem&, const Array&, int64_t columns);
State state_of(const Problem&, const void* data, bool backward);
// One that the heads of a group share, or, `once`, that only the first of them has.
State shared(const Problem&, State, bool once);
void fill(Launch&, const Problem&, const void* inverse, void* kept, bool backward);
// Gives every head so many blocks.
void share_out(Launch&, int parts);

// Writes the slopes (batch, heads, rows) of wide heads with a normaliser; null or why the launch failed.
const char* write_slopes(const Problem&, const Gradients&, float* slopes, const Device&, void* stream);

}  // namespace cla::cuda
