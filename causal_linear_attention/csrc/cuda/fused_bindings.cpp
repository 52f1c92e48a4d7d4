// The operators of fused.h on CUDA, launched on the current stream of the inputs' device.
#include "../fused_bindings.h"

#include "fused.h"
#include "launching.h"

namespace cla {
namespace {

struct Cuda {
  struct Guard : torch::stable::accelerator::DeviceGuard {
    explicit Guard(const Tensor& x) : DeviceGuard(x.get_device_index()) {
      require(x.scalar_type() != ScalarType::Double, kDtypes);
      require(x.numel() < kMost * 32, "the CUDA kernels take at most 2^33 numbers");
    }
  };
  template <size_t N>
  static Tensor empty(const Tensor& like, const int64_t (&sizes)[N], ScalarType dtype) {
    return torch::stable::new_empty(like, {sizes, N}, dtype);
  }
  // Rows that add up to it.
  static Tensor theta_gradient(const std::optional<Tensor>& theta, const Tensor& qkv, int64_t parts) {
    if (!theta.has_value()) return empty(qkv, {0}, ScalarType::Float);
    return empty(qkv, {parts, theta->numel()}, ScalarType::Float);
  }
  static int64_t theta_parts(const FeaturesGradient& s) { return cuda::theta_parts(s.inputs); }
  static int64_t theta_parts(const BlocksGradient& s) { return cuda::block_count(s.blocks); }
  template <class Step>
  static void launch(const char* (*step)(const Step&, const Device&, void*), const Step& s, const Tensor& like) {
    check_launch(step(s, device_of(like), stream_of(like)));
  }
  static void run(const Residual& s, const Tensor& like) { launch(cuda::residual, s, like); }
  static void run(const ResidualGradient& s, const Tensor& like) { launch(cuda::residual_gradient, s, like); }
  static void run(const Gated& s, const Tensor& like) { launch(cuda::gated, s, like); }
  static void run(const GatedGradient& s, const Tensor& like) { launch(cuda::gated_gradient, s, like); }
  static void run(const Features& s, const Tensor& like) { launch(cuda::features, s, like); }
  static void run(const FeaturesGradient& s, const Tensor& like) { launch(cuda::features_gradient, s, like); }
  static void run(const Blocks& s, const Tensor& like) { launch(cuda::blocks, s, like); }
  static void run(const BlocksGradient& s, const Tensor& like) { launch(cuda::blocks_gradient, s, like); }
};

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CUDA, m) {
  CLA_IMPL_FUSED(cla::Cuda, residual);
  CLA_IMPL_FUSED(cla::Cuda, residual_backward);
  CLA_IMPL_FUSED(cla::Cuda, gated);
  CLA_IMPL_FUSED(cla::Cuda, gated_backward);
  CLA_IMPL_FUSED(cla::Cuda, features);
  CLA_IMPL_FUSED(cla::Cuda, features_backward);
  CLA_IMPL_FUSED(cla::Cuda, blocks);
  CLA_IMPL_FUSED(cla::Cuda, blocks_backward);
}
