// One new token of TransNormer's attentions, and RMSNorm with its derivative, on a GPU: plain C++, no torch, no CUDA
// headers. Pointers lie on the current device; each is one launch on the stream, which never waits; null or why it
// failed.
#pragma once

#include "../decoding.h"
#include "attention.h"

namespace cla::cuda {

const char* norm_step(const NormStep&, const Device&, void* stream);

// A token whose place is not in its block writes nothing there and gets NaN.
const char* block_step(const BlockStep&, const Device&, void* stream);

// out = x / (root + eps), root the root mean square of each row; x and out: (rows, width) of a dtype but float64.
struct RmsNorm {
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::f32;
  double eps = 0.0;
  const void* x = nullptr;
  void* out = nullptr;
  float* root = nullptr;  // (rows)
};
const char* rms_norm(const RmsNorm&, const Device&, void* stream);

// grad_x from what forward wrote and the gradient of out. A row of zeros passes none in float16, which cannot hold it.
struct RmsNormGradient {
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::f32;
  double eps = 0.0;
  const void *grad = nullptr, *out = nullptr;
  const float* root = nullptr;
  void* grad_x = nullptr;
};
const char* rms_norm_backward(const RmsNormGradient&, const Device&, void* stream);

}  // namespace cla::cuda
