// The operators on CUDA, launched on the current stream of the inputs' device.
#include "../bindings.h"

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>

#include "attention.h"

namespace cla {
namespace {

using cla_cuda::Array;
using cla_cuda::Device;
using cla_cuda::Problem;

cla_cuda::Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return cla_cuda::Dtype::f32;
    case ScalarType::BFloat16:
      return cla_cuda::Dtype::bf16;
    case ScalarType::Half:
      return cla_cuda::Dtype::f16;
    default:
      throw std::runtime_error("expected float32, bfloat16 or float16 on CUDA");
  }
}

Array array_of(const Tensor& x) {
  return {const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

float* floats(const Tensor& x) { return static_cast<float*>(const_cast<void*>(x.const_data_ptr())); }
float* floats(const std::optional<Tensor>& x) { return x.has_value() ? floats(*x) : nullptr; }

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&value, name, device);
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  return value;
}

Device device_of(const Tensor& x) {
  const int index = x.get_device_index();
  return {10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
              attribute(cudaDevAttrComputeCapabilityMinor, index),
          attribute(cudaDevAttrMultiProcessorCount, index),
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index)};
}

void* stream_of(const Tensor& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return stream;
}

Tensor scratch_of(const Tensor& like, int64_t numbers) {
  const int64_t size[] = {numbers};
  return torch::stable::new_empty(like, {size, 1}, ScalarType::Float);
}

void check_launch(const char* error) {
  if (error != nullptr) throw std::runtime_error(std::string("the CUDA kernel was not launched: ") + error);
}

Problem problem_of(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& state,
                   bool normalize, double eps) {
  require(q.size(3) >= 1 && v.size(3) >= 1, "the CUDA kernels take heads of at least one column");
  require(q.size(3) <= cla_cuda::kMaxColumns && v.size(3) <= cla_cuda::kMaxColumns,
          "the CUDA kernels take heads of at most 128 columns");
  Problem p;
  p.batch = q.size(0);
  p.heads = q.size(1);
  p.rows = q.size(2);
  p.depth = static_cast<int>(q.size(3));
  p.width = static_cast<int>(v.size(3));
  p.dtype = dtype_of(q);
  p.normalize = normalize;
  p.eps = static_cast<float>(eps);
  p.q = array_of(q);
  p.k = array_of(k);
  p.v = array_of(v);
  p.state = floats(state);
  return p;
}

std::tuple<Tensor, Tensor, Tensor> forward_op(Tensor q, Tensor k, Tensor v, std::optional<Tensor> state,
                                              bool normalize, double eps) {
  check_inputs(q, k, v, state, normalize);
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  state = contiguous_state(state);
  Tensor out = new_like(v), final_state = new_state(q, v, normalize), inverse = new_inverse(q, normalize);
  const Problem p = problem_of(q, k, v, state, normalize, eps);
  const Device device = device_of(q);
  const Tensor scratch = scratch_of(q, forward_scratch(p, device));
  check_launch(forward(p, {array_of(out), floats(final_state), floats(inverse)}, device, floats(scratch),
                       stream_of(q)));
  return {out, final_state, inverse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_op(Tensor grad_out, std::optional<Tensor> grad_state,
                                                       Tensor q, Tensor k, Tensor v,
                                                       std::optional<Tensor> state, Tensor inverse,
                                                       bool normalize, double eps) {
  check_inputs(q, k, v, state, normalize);
  check_inputs(q, k, grad_out, grad_state, normalize);
  require(v.size(3) == grad_out.size(3), "grad_out must be shaped like v");
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  grad_out = with_dense_rows(grad_out);
  check_inverse(inverse, q, normalize);
  inverse = as_contiguous(inverse);
  state = contiguous_state(state);
  grad_state = contiguous_state(grad_state);
  Tensor grad_q = new_like(q), grad_k = new_like(k), grad_v = new_like(v);
  Tensor grad_initial = new_state(q, v, normalize);
  const Problem p = problem_of(q, k, v, state, normalize, eps);
  const Device device = device_of(q);
  const Tensor scratch = scratch_of(q, backward_scratch(p, device));
  const cla_cuda::Gradients gradients{array_of(grad_out), floats(grad_state), floats(inverse),
                                      array_of(grad_q),   array_of(grad_k),   array_of(grad_v),
                                      floats(grad_initial)};
  check_launch(backward(p, gradients, device, floats(scratch), stream_of(q)));
  return {grad_q, grad_k, grad_v, grad_initial};
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CUDA, m) {
  m.impl("forward", TORCH_BOX(&cla::forward_op));
  m.impl("backward", TORCH_BOX(&cla::backward_op));
}
