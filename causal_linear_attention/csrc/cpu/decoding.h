// One new token of TransNormer's attentions on a CPU, and its RMSNorm without derivatives.
#pragma once

#include "../decoding.h"
#include "forward_backward.h"

namespace cla {

void norm_step(const NormStep&, const Threads&);
void block_step(const BlockStep&, const Threads&);

// out = x / (root mean square of its row + eps), x: (rows, width).
void rms_norm(const float* x, int64_t rows, int64_t width, double eps, float* out, const Threads&);

}  // namespace cla
