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

// A contiguous matrix for rows like x, and perhaps a number for each row of it.
const float* matrix_of(const Tensor& weight, int64_t depth, const Tensor& x) {
  check_float(weight, x, "weights must be float32 and contiguous");
  require(weight.dim() == 2 && weight.size(1) == depth, "weights must be (outputs, inputs)");
  return floats(weight);
}
const float* bias_of(const std::optional<Tensor>& bias, int64_t width, const Tensor& x) {
  if (!bias.has_value()) return nullptr;
  check_float(*bias, x, "biases must be float32 and contiguous");
  require(bias->dim() == 1 && bias->size(0) == width, "biases must have a number for each output");
  return floats(*bias);
}

void check_rows_of(const Tensor& x) {
  check_float(x, x, "x must be float32");
  require(x.dim() == 3, "x must be (length, batch, width)");
}

Tensor linear_step_op(Tensor x, std::optional<double> eps, Tensor weight, std::optional<Tensor> bias,
                      std::optional<Tensor> residual) {
  x = as_contiguous(x);
  check_rows_of(x);
  LinearStep s;
  Product& p = s.product;
  p.rows = x.size(0) * x.size(1);
  p.depth = x.size(2);
  p.x = floats(x);
  p.weight = matrix_of(weight, p.depth, x);
  p.width = weight.size(0);
  p.bias = bias_of(bias, p.width, x);
  s.normed = eps.has_value();
  s.eps = eps.value_or(0);
  if (residual.has_value()) {
    residual = as_contiguous(*residual);
    check_rows_of(*residual);
    require(residual->size(0) == x.size(0) && residual->size(1) == x.size(1) && residual->size(2) == p.width,
            "residual must be like the output");
    p.residual = floats(*residual);
  }
  Tensor out = empty({x.size(0), x.size(1), p.width}, ScalarType::Float);
  p.out = floats_of(out);
  if (p.rows > 0) linear_step(s, torch_threads());
  return out;
}

Tensor gated_step_op(Tensor x, double eps, Tensor weight, std::optional<Tensor> bias, Tensor out_weight,
                     std::optional<Tensor> out_bias) {
  x = as_contiguous(x);
  check_rows_of(x);
  GatedStep s;
  s.rows = x.size(0) * x.size(1);
  s.width = x.size(2);
  s.eps = eps;
  s.x = floats(x);
  s.weight = matrix_of(weight, s.width, x);
  require(weight.size(0) % 2 == 0, "there must be as many gates as values");
  s.inner = weight.size(0) / 2;
  s.bias = bias_of(bias, 2 * s.inner, x);
  s.out_weight = matrix_of(out_weight, s.inner, x);
  require(out_weight.size(0) == s.width, "the output must be like x");
  s.out_bias = bias_of(out_bias, s.width, x);
  Tensor out = empty({x.size(0), x.size(1), s.width}, ScalarType::Float);
  s.out = floats_of(out);
  if (s.rows > 0) gated_step(s, torch_threads());
  return out;
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CPU, m) {
  CLA_IMPL(norm_step);
  CLA_IMPL(block_step);
  CLA_IMPL(rms_norm);
  CLA_IMPL(linear_step);
  CLA_IMPL(gated_step);
}
