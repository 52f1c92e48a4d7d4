// Forward, backward and step over batches and heads: threads, segments and the instruction set.
// Free of torch; every pointer is borrowed, every stride counts elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"

namespace cla {

// A (batch, heads, rows, columns) array whose last dimension is contiguous.
struct Array {
  void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides
};

// A (batch, heads, depth, width) state of the accumulation type, contiguous; data may be null (zero).
struct Problem {
  int64_t batch = 0, heads = 0, rows = 0, depth = 0, width = 0;
  Dtype dtype = Dtype::f32;
  bool normalize = false;
  double eps = 0.0;
  Array q, k, v;
  const void* state = nullptr;  // width + normalize columns
};

// Runs body(context, first, last) over [0, count), possibly on several threads.
struct Threads {
  int count = 1;
  void (*run)(int64_t count, void (*body)(int64_t, int64_t, void*), void* context) = nullptr;
};

// Writes out, the final state and, with a normaliser, inverse (batch, heads, rows).
void forward(const Problem&, Array out, void* final_state, void* inverse, const Threads&);

struct Gradients {
  Array q, k, v;
  void* state = nullptr;  // null: not wanted
};

// `inverse` (what forward wrote) is read with a normaliser only; grad_state may be null.
void backward(const Problem&, Array grad_out, const void* grad_state, const void* inverse,
              const Gradients&, const Threads&);

// q, k: (batch, heads, depth), v, out: (batch, heads, width), contiguous; rows is 1.
void step(const Problem&, void* out, void* state_out, const Threads&);

// --- instruction sets --------------------------------------------------------------------------------

// Those that this processor has and this build contains, best last.
std::vector<const Kernels*> available_kernels();
// The one in use: the best, or the one named by CAUSAL_LINEAR_ATTENTION_ISA (std::runtime_error if it is
// not available). `choose_kernels` overrides it; an empty name goes back to the default.
const Kernels& current_kernels();
void choose_kernels(const std::string& name);

}  // namespace cla
