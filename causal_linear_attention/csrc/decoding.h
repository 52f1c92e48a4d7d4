// What TransNormer's attentions are asked for one new token beside `step`, in float32: one call instead of thirty
// operators, each of which costs more than its arithmetic. Plain C++: no torch, no CUDA. Arrays are contiguous.
#pragma once

#include <cstdint>

namespace cla {

// LRPE: a row minus twice its part along `direction`, times `scale`; then channels 2j and 2j + 1 turned by
// position * theta[j]. An odd last channel is not turned.
struct Turn {
  const float* direction = nullptr;  // (dim), of length one
  const double* theta = nullptr;     // (dim / 2)
  const int64_t* positions = nullptr;  // (batch)
  float scale = 1;
};

// NormAttention: elu (plus one) of q and k, turned, then `step`. q, k, v, out: (batch, heads, dim).
struct NormStep {
  int64_t batch = 0, heads = 0, dim = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  Turn turn;
  bool one_plus = false;
  const float* state = nullptr;  // (batch, heads, dim, dim)
  float *out = nullptr, *state_out = nullptr;
};

// DiagAttention: k, turned, and v go to their place in a block of `size` keys and values, of which q sees
// those up to there, weighted by relu or softmax. Positions are places in the block.
struct BlockStep {
  int64_t batch = 0, heads = 0, dim = 0, size = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  Turn turn;
  bool softmax = false;
  float *keys = nullptr, *values = nullptr;  // (batch, heads, size, dim)
  float* out = nullptr;
};

}  // namespace cla
