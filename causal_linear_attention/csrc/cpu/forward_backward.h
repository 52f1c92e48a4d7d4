// Forward, backward and step over batches and heads: threads, segments and the instruction set.
// Free of torch; every pointer is borrowed, every stride counts elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../problem.h"
#include "kernels.h"

namespace cla {

// Runs body(context, first, last) over [0, count), possibly on several threads.
struct Threads {
  int count = 1;
  void (*run)(int64_t count, void (*body)(int64_t, int64_t, void*), void* context) = nullptr;
};

void forward(const Problem&, const Outputs&, const Threads&);
void backward(const Problem&, const Gradients&, const Threads&);

// q: (batch, heads, depth), out: (batch, heads, width), k and v the same of their heads, contiguous; rows is 1.
void step(const Problem&, void* out, void* state_out, const Threads&);

// --- instruction sets --------------------------------------------------------------------------------

// Those that this processor has and this build contains, best last.
std::vector<const Kernels*> available_kernels();
// The one in use: the best, or the one named by CAUSAL_LINEAR_ATTENTION_ISA (std::runtime_error if it is
// not available). `choose_kernels` overrides it; an empty name goes back to the default.
const Kernels& current_kernels();
void choose_kernels(const std::string& name);

}  // namespace cla
