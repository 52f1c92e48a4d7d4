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
  static Tensor theta_gradient(const std::optional<Tensor>& theta, const Tensor& qkv, int64_t) {
    if (!theta.has_value()) return cla::empty({0}, accumulation_type(qkv));
    return cla::empty({theta->numel()}, type_of_gradient(*theta));
  }
  template <class Step>
  static int64_t theta_parts(const Step&) {
    return 1;
  }
  static void run(const Residual& s, const Tensor&) { residual(s, torch_threads()); }
  static void run(const ResidualGradient& s, const Tensor&) { residual_gradient(s, torch_threads()); }
  static void run(const Gated& s, const Tensor&) { gated(s, torch_threads()); }
  static void run(const GatedGradient& s, const Tensor&) { gated_gradient(s, torch_threads()); }
  static void run(const Features& s, const Tensor&) { features(s, torch_threads()); }
  static void run(const FeaturesGradient& s, const Tensor&) { features_gradient(s, torch_threads()); }
  static void run(const Blocks& s, const Tensor&) { blocks(s, torch_threads()); }
  static void run(const BlocksGradient& s, const Tensor&) { blocks_gradient(s, torch_threads()); }
};

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CPU, m) {
  CLA_IMPL_FUSED(cla::Cpu, residual);
  CLA_IMPL_FUSED(cla::Cpu, residual_backward);
  CLA_IMPL_FUSED(cla::Cpu, gated);
  CLA_IMPL_FUSED(cla::Cpu, gated_backward);
  CLA_IMPL_FUSED(cla::Cpu, features);
  CLA_IMPL_FUSED(cla::Cpu, features_backward);
  CLA_IMPL_FUSED(cla::Cpu, blocks);
  CLA_IMPL_FUSED(cla::Cpu, blocks_backward);
}
