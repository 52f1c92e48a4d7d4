// The operators on CUDA: the same sweeps as on the CPU (csrc/cpu/driver.cpp says which), launched on the
// current stream of the inputs' device.
#include "../bindings.h"

#include <torch/csrc/stable/accelerator.h>

#include <utility>

#include "../kernels/sweep.h"

namespace cla {
namespace {

using cla_cuda::Operand;
using cla_cuda::State;
using cla_cuda::Sweep;

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

Operand operand(const Tensor& x, bool reverse) {
  Operand result;
  const int64_t last = reverse && x.size(2) > 0 ? x.size(2) - 1 : 0;
  result.data = static_cast<char*>(const_cast<void*>(x.const_data_ptr())) +
                last * x.stride(2) * static_cast<int64_t>(x.element_size());
  result.batch = x.stride(0);
  result.head = x.stride(1);
  result.row = reverse ? -x.stride(2) : x.stride(2);
  return result;
}

Operand with_extra(Operand x, const float* column, float constant) {
  x.has_extra = true;
  x.extra = column;
  x.extra_constant = constant;
  return x;
}

// The contiguous state (batch, heads, D, M or M + 1), or transposed.
State state_of(const std::optional<Tensor>& x, bool transposed) {
  State state;
  if (!x.has_value()) return state;
  state.data = static_cast<float*>(const_cast<void*>(x->const_data_ptr()));
  state.head = x->size(2) * x->size(3);
  state.row = transposed ? 1 : x->size(3);
  state.column = transposed ? x->size(3) : 1;
  return state;
}

float* floats(const Tensor& x) { return static_cast<float*>(const_cast<void*>(x.const_data_ptr())); }

// On the current stream of the tensors' device, which the caller has made the current one.
void run(Sweep sweep, const Tensor& like) {
  require(cla_cuda::plan(sweep), "D and M are too large for the shared memory of this GPU");
  std::optional<Tensor> sums;
  if (sweep.segments > 1) {
    const int64_t size[] = {sweep.heads * sweep.segments * cla_cuda::sums_size(sweep)};
    sums = torch::stable::new_empty(like, {size, 1}, ScalarType::Float);
    sweep.sums = floats(*sums);
  }
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(like.get_device_index(), &stream));
  const cudaError_t error = cla_cuda::launch(sweep, static_cast<cudaStream_t>(stream));
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("the CUDA kernel was not launched: ") + cudaGetErrorString(error));
  }
}

Sweep sweep_of(const Tensor& q, int64_t depth, int64_t width, bool reverse) {
  Sweep sweep;
  sweep.heads = q.size(0) * q.size(1);
  sweep.heads_of_a_batch = q.size(1) > 0 ? q.size(1) : 1;
  sweep.rows = q.size(2);
  sweep.depth = static_cast<int>(depth);
  sweep.width = static_cast<int>(width);
  sweep.dtype = dtype_of(q);
  sweep.reverse = reverse;
  return sweep;
}

std::optional<Tensor> contiguous_state(const std::optional<Tensor>& state) {
  return state.has_value() ? std::optional<Tensor>(torch::stable::contiguous(*state)) : std::nullopt;
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
  Sweep sweep = sweep_of(q, q.size(3), v.size(3), false);
  sweep.a = operand(q, false);
  sweep.b = operand(k, false);
  sweep.c = operand(v, false);
  sweep.out = operand(out, false);
  sweep.initial = state_of(state, false);
  sweep.final = state_of(final_state, false);
  sweep.normalize = normalize;
  sweep.eps = static_cast<float>(eps);
  sweep.inverse = floats(inverse);
  run(sweep, q);
  return {out, final_state, inverse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_op(Tensor grad_out, std::optional<Tensor> grad_state,
                                                       Tensor q, Tensor k, Tensor v,
                                                       std::optional<Tensor> state, Tensor inverse,
                                                       bool normalize, double eps) {
  (void)eps;
  check_inputs(q, k, v, state, normalize);
  check_inputs(q, k, grad_out, grad_state, normalize);
  require(v.size(3) == grad_out.size(3), "grad_out must be shaped like v");
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  grad_out = with_dense_rows(grad_out);
  inverse = torch::stable::contiguous(inverse);
  require(inverse.numel() == (normalize ? q.size(0) * q.size(1) * q.size(2) : 0), "inverse must be forward's");
  state = contiguous_state(state);
  grad_state = contiguous_state(grad_state);
  Tensor grad_q = new_like(q), grad_k = new_like(k), grad_v = new_like(v);
  Tensor grad_initial = new_state(q, v, normalize), slope = new_inverse(q, normalize);
  const int64_t inner = v.size(3) + normalize;
  auto gradient = [&](bool reverse, bool extra, const float* column) {
    Operand x = operand(grad_out, reverse);
    if (normalize) x.scale = floats(inverse);
    return normalize && extra ? with_extra(x, column, 0.0f) : x;
  };
  auto values = [&](bool reverse) {
    const Operand x = operand(v, reverse);
    return normalize ? with_extra(x, nullptr, 1.0f) : x;
  };

  Sweep for_q = sweep_of(q, inner, q.size(3), false);
  for_q.a = gradient(false, true, nullptr);
  for_q.b = values(false);
  for_q.c = operand(k, false);
  for_q.out = operand(grad_q, false);
  for_q.initial = state_of(state, true);
  if (normalize) {
    for_q.queries = operand(q, false);
    for_q.inverse = floats(inverse);
    for_q.slope = floats(slope);
  }
  run(for_q, q);

  Sweep for_k = sweep_of(q, inner, q.size(3), true);
  for_k.a = values(true);
  for_k.b = gradient(true, true, floats(slope));
  for_k.c = operand(q, true);
  for_k.out = operand(grad_k, true);
  for_k.initial = state_of(grad_state, true);
  for_k.final = state_of(grad_initial, true);
  run(for_k, q);

  Sweep for_v = sweep_of(q, q.size(3), v.size(3), true);
  for_v.a = operand(k, true);
  for_v.b = operand(q, true);
  for_v.c = gradient(true, false, nullptr);
  for_v.out = operand(grad_v, true);
  for_v.initial = state_of(grad_state, false);
  run(for_v, q);
  return {grad_q, grad_k, grad_v, grad_initial};
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CUDA, m) {
  m.impl("forward", TORCH_BOX(&cla::forward_op));
  m.impl("backward", TORCH_BOX(&cla::backward_op));
}
