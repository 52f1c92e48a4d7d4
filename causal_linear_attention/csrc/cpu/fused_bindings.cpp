// The operators of fused.h on the CPU; their schemas are in fused.py.
#include "../fused_bindings.h"

#include "fused.h"
#include "tensors.h"

namespace cla {
namespace {

struct Cpu {
  struct Guard {
    explicit Guard(const Tensor&) {}
  };
  template <size_t N>
  static Tensor empty(const Tensor&, const int64_t (&sizes)[N], ScalarType dtype) {
    return cla::empty(sizes, dtype);
  }
  static Tensor theta_gradient(const std::optional<Tensor>& theta, const Tensor& qkv, const Joined&) {
    if (!theta.has_value()) return cla::empty({0}, accumulation_type(qkv));
    return cla::empty({theta->numel()}, type_of_gradient(*theta));
  }
  static void run(const Residual& s, const Tensor&) { residual(s, torch_threads()); }
  static void run(const ResidualGradient& s, const Tensor&) { residual_gradient(s, torch_threads()); }
  static void run(const Gated& s, const Tensor&) { gated(s, torch_threads()); }
  static void run(const GatedGradient& s, const Tensor&) { gated_gradient(s, torch_threads()); }
  static void run(const Features& s, const Tensor&) { features(s, torch_threads()); }
  static void run(const FeaturesGradient& s, const Tensor&) { features_gradient(s, torch_threads()); }
};

Tensor blocks_op(Tensor qkv, std::optional<Tensor> direction, std::optional<Tensor> theta, int64_t heads,
                 int64_t size, double scale, bool causal, bool softmax, std::optional<Tensor> padding,
                 std::optional<Tensor> seed, double p) {
  const Joined x = joined_of(qkv, heads);
  const Rotation r = rotation_of(direction, theta, scale, x, qkv);
  Blocks s = blocks_of(x, r, qkv, size, causal, softmax, padding, seed, p);
  Tensor out = empty({x.length, x.batch, x.heads * x.dim}, qkv.scalar_type());
  s.out = out.mutable_data_ptr();
  blocks(s, torch_threads());
  return out;
}

std::tuple<Tensor, Tensor> blocks_backward_op(Tensor grad_out, Tensor qkv, std::optional<Tensor> direction,
                                              std::optional<Tensor> theta, int64_t heads, int64_t size, double scale,
                                              bool causal, bool softmax, std::optional<Tensor> padding,
                                              std::optional<Tensor> seed, double p) {
  const Joined x = joined_of(qkv, heads);
  const Rotation r = rotation_of(direction, theta, scale, x, qkv);
  BlocksGradient g;
  g.blocks = blocks_of(x, r, qkv, size, causal, softmax, padding, seed, p);
  grad_out = as_contiguous(grad_out);
  require(grad_out.dim() == 3 && grad_out.size(0) == x.length && grad_out.size(1) == x.batch &&
              grad_out.size(2) == x.heads * x.dim && grad_out.scalar_type() == qkv.scalar_type() &&
              on_one_device(grad_out, qkv),
          "grad_out must be like the output");
  g.grad_out = grad_out.const_data_ptr();
  Tensor grad_qkv = torch::stable::empty_like(qkv), grad_theta = Cpu::theta_gradient(theta, qkv, x);
  g.grad_qkv = grad_qkv.mutable_data_ptr();
  if (theta.has_value()) g.grad_theta = grad_theta.mutable_data_ptr();
  blocks_gradient(g, torch_threads());
  return {grad_qkv, grad_theta};
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CPU, m) {
  CLA_IMPL_FUSED(cla::Cpu, residual);
  CLA_IMPL_FUSED(cla::Cpu, residual_backward);
  CLA_IMPL_FUSED(cla::Cpu, gated);
  CLA_IMPL_FUSED(cla::Cpu, gated_backward);
  CLA_IMPL_FUSED(cla::Cpu, features);
  CLA_IMPL_FUSED(cla::Cpu, features_backward);
  CLA_IMPL(blocks);
  CLA_IMPL(blocks_backward);
}
