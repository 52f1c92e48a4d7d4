// One new token of TransNormer's layers on a CPU, and its RMSNorm without derivatives.
#pragma once

#include "../decoding.h"
#include "forward_backward.h"
#include "kernels.h"

namespace cla {

void norm_step(const NormStep&, const Threads&);
void block_step(const BlockStep&, const Threads&);

// out = x / (root mean square of its row + eps), x: (rows, width).
void rms_norm(const float* x, int64_t rows, int64_t width, double eps, float* out, const Threads&);

// A linear map of a few rows, of their RMSNorm where `normed`, plus a residual where it is given.
struct LinearStep {
  Product product;
  bool normed = false;
  double eps = 0;
};

// out = x + the gated unit of the RMSNorm of x: (rows, width). The first matrix holds the gates, then the values:
// (2 inner, width); the second is (width, inner). Biases may be null.
struct GatedStep {
  int64_t rows = 0, width = 0, inner = 0;
  double eps = 0;
  const float *x = nullptr, *weight = nullptr, *bias = nullptr, *out_weight = nullptr, *out_bias = nullptr;
  float* out = nullptr;
};

void linear_step(const LinearStep&, const Threads&);
void gated_step(const GatedStep&, const Threads&);

}  // namespace cla
