// The operators of decoding.h, for float32 on the CPU.
#include "../decoding_bindings.h"

#include "decoding.h"
#include "tensors.h"

namespace cla {
namespace {

std::tuple<Tensor, Tensor> norm_step_op(Tensor q, Tensor k, Tensor v, Tensor direction, Tensor theta,
                                        Tensor positions, Tensor state, bool one_plus) {
  NormStep s = norm_step_of(q, k, v, direction, theta, positions, state, one_plus);
  Tensor out = empty({s.batch, s.heads, 1, s.dim}, ScalarType::Float);
  Tensor state_out = empty({s.batch, s.heads, s.dim, s.dim}, ScalarType::Float);
  s.out = floats_of(out);
  s.state_out = floats_of(state_out);
  norm_step(s, torch_threads());
  return {out, state_out};
}

Tensor block_step_op(Tensor q, Tensor k, Tensor v, Tensor direction, Tensor theta, double scale,
                     Tensor places, Tensor keys, Tensor values, bool softmax) {
  BlockStep s = block_step_of(q, k, v, direction, theta, scale, places, keys, values, softmax);
  for (int64_t b = 0; b < s.batch; ++b) {
    require(s.turn.positions[b] >= 0 && s.turn.positions[b] < s.size, "places must be from 0 to size - 1");
  }
  Tensor out = empty({s.batch, s.heads, 1, s.dim}, ScalarType::Float);
  s.out = floats_of(out);
  block_step(s, torch_threads());
  return out;
}

Tensor rms_norm_op(Tensor x, double eps) {
  x = as_contiguous(x);
  check_float(x, x, "x must be float32");
  require(x.dim() > 0, "x must have a last dimension");
  Tensor out = torch::stable::empty_like(x);
  const int64_t width = x.size(x.dim() - 1);
  if (x.numel() > 0) rms_norm(floats(x), x.numel() / width, width, eps, floats_of(out), torch_threads());
  return out;
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CPU, m) {
  CLA_IMPL(norm_step);
  CLA_IMPL(block_step);
  CLA_IMPL(rms_norm);
}
