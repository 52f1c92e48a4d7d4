// Scans (see kernels.h) over the heads of all sequences, which schedule.cpp spreads over threads.
#pragma once

#include <span>

#include "forward_backward.h"

namespace cla {

struct Operand {
  Array rows;
  Dtype dtype = Dtype::f32;
  const void* scale = nullptr;  // (batch, heads, rows) of the accumulation type
  const void* extra = nullptr;  // the same, or one number for all rows if `constant`
  bool constant = false;
  double factor = 1.0;  // of all of them
};

// A state in memory: element (r, c) of heads h group to h group + group - 1, counted over all sequences, is data[h * head +
// r * row + c * column]; only of the first of them if `once`.
struct StateView {
  void* data = nullptr;
  int64_t head = 0, row = 0, column = 0;
  int64_t z = 0;      // offset and stride of the normaliser's vector (forward only)
  int64_t z_row = 0;
  int64_t group = 1;
  bool once = false;
};

struct Scan {
  int64_t batch = 0, heads = 0, rows = 0, depth = 0, width = 0;
  int64_t sequences = 0;  // as many as batch rows, unless these are packed
  const int32_t* offsets = nullptr;  // see Problem
  Operand a, b, c, out;
  double factor = 1.0;  // of the outputs
  StateView initial, final;
  bool reverse = false;
  bool normalize = false;
  double eps = 0.0;
  void* inverse = nullptr;
  Operand queries;
  void* slope = nullptr;
  // Decays and the sums for their gradient, see Segment: `decay` as in Problem, `dots` (batch, heads, rows), `kept` and
  // `products` for `blocks` of every head of all sequences, counted from first_block.
  Array decay;
  Operand dotted;
  void *dots = nullptr, *kept = nullptr, *products = nullptr;
  const int64_t* first_block = nullptr;
  Operand pair, pair_out;  // see Segment
  int64_t pair_width = 0;  // 0: there is none
};

// Scans over the same heads and rows, of which a later one may read what an earlier one wrote for its head.
// T is the accumulation type, float or double.
template <class T>
void run_scans(std::span<const Scan> scans, Threads threads);

}  // namespace cla
