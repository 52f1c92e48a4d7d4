// What TransNormer's attentions do with one new token beside `step`, in float32: one call instead of
// thirty operators, each of which costs more than its arithmetic.
#pragma once

#include "forward_backward.h"

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
};
void norm_step(const NormStep&, float* out, float* state_out, const Threads&);

// DiagAttention: k, turned, and v go to their place in a block of `size` keys and values, of which q sees
// those up to there, weighted by relu or softmax. Positions are places in the block.
struct BlockStep {
  int64_t batch = 0, heads = 0, dim = 0, size = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  Turn turn;
  bool softmax = false;
  float *keys = nullptr, *values = nullptr;  // (batch, heads, size, dim)
};
void block_step(const BlockStep&, float* out, const Threads&);

// out = x / (root mean square of its row + eps), x: (rows, width).
void rms_norm(const float* x, int64_t rows, int64_t width, double eps, float* out, const Threads&);

}  // namespace cla
