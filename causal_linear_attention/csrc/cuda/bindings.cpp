// The operators on CUDA, launched on the current stream of the inputs' device.
#include "../decoding_bindings.h"

#include <algorithm>

#include "decoding.h"
#include "launching.h"

namespace cla {
namespace {

// Scratch memory that `kept` owns.
cuda::Allocate allocator(const Tensor& like, std::optional<Tensor>& kept) {
  return [&](int64_t numbers) {
    const int64_t size[] = {numbers};
    kept = torch::stable::new_empty(like, {size, 1}, ScalarType::Float);
    return floats_of(*kept);
  };
}

Problem checked_problem(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& state,
                        const Array& decay, bool normalize, double eps, const Packing& packing) {
  require(q.size(3) >= 1 && v.size(3) >= 1, "the CUDA kernels take heads of at least one column");
  require(q.scalar_type() != ScalarType::Double, kDtypes);
  const int64_t most = cuda::max_columns(dtype_of(q));
  require(q.size(3) <= most && v.size(3) <= most,
          "the CUDA kernels take heads of at most 128 columns, in 16 bits 256");
  require(packing.sequences * q.size(1) < kMost && q.size(2) < kMost,
          "the CUDA kernels take at most 2^28 heads and rows");
  Problem p = problem_of(q, k, v, data_of(state), normalize, eps, packing);
  p.decay = decay;
  require(decay.data == nullptr || !cuda::is_wide(p), "the CUDA kernels with decays take heads of at most 128 columns");
  return p;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> run_forward(Tensor q, Tensor k, Tensor v, std::optional<Tensor> state,
                                                       const Array& decay, bool normalize, double eps, bool keep,
                                                       const std::optional<Tensor>& cu_seqlens,
                                                       bool return_state, double scale) {
  require(!normalize || scale == 1, "the CUDA kernels scale no output with a normaliser");
  const Packing packing(q, cu_seqlens, return_state);
  check_states(state, packing.sequences, k, v, normalize);
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  state = contiguous_state(state);
  Tensor out = new_rows(q, v), inverse = new_inverse(q, normalize);
  Tensor final_state = new_states(packing.states ? packing.sequences : 0, k, v, normalize);
  Problem p = checked_problem(q, k, v, state, decay, normalize, eps, packing);
  p.scale = scale;
  Tensor kept = new_kept(k, v, normalize, keep ? cuda::kept_states(p) : 0);
  const Outputs outputs{array_of(out), packing.states ? final_state.mutable_data_ptr() : nullptr,
                        inverse.mutable_data_ptr(), kept.numel() > 0 ? kept.mutable_data_ptr() : nullptr};
  std::optional<Tensor> scratch;
  check_launch(cuda::forward(p, outputs, device_of(q), allocator(q, scratch), stream_of(q)));
  return {out, final_state, inverse, kept};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> forward_op(Tensor q, Tensor k, Tensor v, std::optional<Tensor> state,
                                                      bool normalize, double eps, bool keep,
                                                      std::optional<Tensor> cu_seqlens, bool return_state,
                                                      double scale) {
  check_rows(q, k, v);
  return run_forward(q, k, v, state, {}, normalize, eps, keep, cu_seqlens, return_state, scale);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> decayed_forward_op(Tensor q, Tensor k, Tensor v, Tensor decay,
                                                              std::optional<Tensor> state, bool normalize,
                                                              double eps, bool keep,
                                                              std::optional<Tensor> cu_seqlens,
                                                              bool return_state, double scale) {
  check_rows(q, k, v);
  return run_forward(q, k, v, state, decays_of(q, k, decay), normalize, eps, keep, cu_seqlens, return_state,
                     scale);
}

constexpr const char* kScaled = "the CUDA kernels' backward pass takes grad_out scaled";

std::tuple<Tensor, Tensor, Tensor, Tensor> run_backward(Tensor grad_out, std::optional<Tensor> grad_state,
                                                        Tensor q, Tensor k, Tensor v,
                                                        std::optional<Tensor> state, const Array& decay,
                                                        Tensor inverse, Tensor kept, bool normalize, double eps,
                                                        std::optional<Tensor> out,
                                                        const std::optional<Tensor>& cu_seqlens,
                                                        void* grad_log_decay) {
  const Packing packing(q, cu_seqlens, state.has_value());
  check_states(state, packing.sequences, k, v, normalize);
  check_states(grad_state, packing.sequences, k, v, normalize);
  check_out(grad_out, q, v, "grad_out must be like forward's output");
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  grad_out = with_dense_rows(grad_out);
  check_inverse(inverse, q, normalize);
  inverse = as_contiguous(inverse);
  state = contiguous_state(state);
  grad_state = contiguous_state(grad_state);
  Tensor grad_q = new_like(q), grad_k = new_rows(q, k), grad_v = new_rows(q, v);
  Tensor grad_initial = new_states(packing.sequences, q, v, normalize);  // the kernels work in it even if not wanted
  const Problem p = checked_problem(q, k, v, state, decay, normalize, eps, packing);
  const int64_t kept_size = cuda::kept_states(p) * k.size(0) * k.size(1) * k.size(3) * (v.size(3) + normalize);
  require(kept.numel() == kept_size && kept.scalar_type() == ScalarType::Float && on_one_device(q, kept),
          "kept must be what forward returned with keep");
  kept = as_contiguous(kept);
  if (cuda::is_wide(p) && normalize) {
    require(out.has_value(), "wide heads with a normaliser need out");
    check_out(*out, q, v, "out must be what forward returned");
    out = with_dense_rows(*out);
  }
  const Gradients gradients{array_of(grad_out), data_of(grad_state), inverse.const_data_ptr(),
                            array_of(grad_q),   array_of(grad_k),    array_of(grad_v),
                            grad_initial.mutable_data_ptr(), kept.const_data_ptr(),
                            out.has_value() ? array_of(*out) : Array{}, grad_log_decay};
  std::optional<Tensor> scratch;
  check_launch(cuda::backward(p, gradients, device_of(q), allocator(q, scratch), stream_of(q)));
  return {grad_q, grad_k, grad_v, packing.states ? grad_initial : new_states(0, q, v, normalize)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_op(Tensor grad_out, std::optional<Tensor> grad_state,
                                                       Tensor q, Tensor k, Tensor v,
                                                       std::optional<Tensor> state, Tensor inverse,
                                                       Tensor kept, bool normalize, double eps,
                                                       std::optional<Tensor> out,
                                                       std::optional<Tensor> cu_seqlens, double scale) {
  require(scale == 1, kScaled);
  check_rows(q, k, v);
  return run_backward(grad_out, grad_state, q, k, v, state, {}, inverse, kept, normalize, eps, out, cu_seqlens,
                      nullptr);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> decayed_backward_op(
    Tensor grad_out, std::optional<Tensor> grad_state, Tensor q, Tensor k, Tensor v, Tensor decay,
    std::optional<Tensor> state, Tensor inverse, Tensor kept, bool normalize, double eps, std::optional<Tensor> out,
    std::optional<Tensor> cu_seqlens, double scale) {
  require(scale == 1, kScaled);
  check_rows(q, k, v);
  const Array decays = decays_of(q, k, decay);
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  const int64_t size[] = {q.size(0), q.size(1), q.size(2)};
  Tensor grad_decay = torch::stable::new_empty(q, {size, 3}, ScalarType::Float);
  auto [grad_q, grad_k, grad_v, grad_initial] =
      run_backward(grad_out, grad_state, q, k, v, state, decays, inverse, kept, normalize, eps, out, cu_seqlens,
                   floats_of(grad_decay));
  return {grad_q, grad_k, grad_v, grad_initial, grad_decay};
}

// A step's grid has a block for each head or more.
void check_heads(const Tensor& q) {
  require(q.size(0) * q.size(1) < kMost, "the CUDA kernels take at most 2^28 heads of all rows together");
}

std::tuple<Tensor, Tensor> step_op(Tensor q, Tensor k, Tensor v, Tensor state, bool normalize, double eps,
                                   std::optional<Tensor> decay, double scale) {
  check_step(q, k, v, state, normalize);
  require(q.scalar_type() != ScalarType::Double, kDtypes);
  check_heads(q);
  const Array decays = decays_of(q, k, decay);
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  q = as_contiguous(q);
  k = as_contiguous(k);
  v = as_contiguous(v);
  state = as_contiguous(state);
  const int64_t size[] = {q.size(0), q.size(1), v.size(2)};
  Tensor out = torch::stable::new_empty(v, {size, 3}), state_out = torch::stable::new_empty(state, state.sizes());
  Problem p = step_of(q, k, v, state, normalize, eps);
  p.decay = decays;
  p.scale = scale;
  check_launch(cuda::step(p, out.mutable_data_ptr(), state_out.mutable_data_ptr(), device_of(q), stream_of(q)));
  return {out, state_out};
}

std::tuple<Tensor, Tensor> norm_step_op(Tensor q, Tensor k, Tensor v, Tensor direction, Tensor theta,
                                        Tensor positions, Tensor state, bool one_plus) {
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  NormStep s = norm_step_of(q, k, v, direction, theta, positions, state, one_plus);
  check_heads(q);
  Tensor out = torch::stable::new_empty(q, q.sizes()), state_out = torch::stable::new_empty(state, state.sizes());
  s.out = floats_of(out);
  s.state_out = floats_of(state_out);
  check_launch(cuda::norm_step(s, device_of(q), stream_of(q)));
  return {out, state_out};
}

Tensor block_step_op(Tensor q, Tensor k, Tensor v, Tensor direction, Tensor theta, double scale, Tensor places,
                     Tensor keys, Tensor values, bool softmax) {
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  BlockStep s = block_step_of(q, k, v, direction, theta, scale, places, keys, values, softmax);
  check_heads(q);
  Tensor out = torch::stable::new_empty(q, q.sizes());
  s.out = floats_of(out);
  check_launch(cuda::block_step(s, device_of(q), stream_of(q)));
  return out;
}

// For a new tensor like x, whose rows are x's.
template <class Norm>
Norm norm_of(const Tensor& x, double eps) {
  require(x.scalar_type() != ScalarType::Double, kDtypes);
  require(x.dim() > 0, "x must have a last dimension");
  Norm s;
  s.width = x.size(x.dim() - 1);
  s.rows = x.numel() / std::max<int64_t>(s.width, 1);
  s.dtype = dtype_of(x);
  s.eps = eps;
  require(s.rows < kMost, "the CUDA kernels take at most 2^28 rows");
  return s;
}

std::tuple<Tensor, Tensor> rms_norm_forward_op(Tensor x, double eps) {
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  x = as_contiguous(x);
  auto s = norm_of<cuda::RmsNorm>(x, eps);
  const int64_t size[] = {s.rows};
  Tensor out = torch::stable::empty_like(x), root = torch::stable::new_empty(x, {size, 1}, ScalarType::Float);
  s.x = x.const_data_ptr();
  s.out = out.mutable_data_ptr();
  s.root = floats_of(root);
  check_launch(cuda::rms_norm(s, device_of(x), stream_of(x)));
  return {out, root};
}

Tensor rms_norm_op(Tensor x, double eps) { return std::get<0>(rms_norm_forward_op(x, eps)); }

Tensor rms_norm_backward_op(Tensor grad, Tensor out, Tensor root, double eps) {
  const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
  grad = as_contiguous(grad);
  out = as_contiguous(out);
  auto s = norm_of<cuda::RmsNormGradient>(out, eps);
  require(grad.numel() == out.numel() && grad.scalar_type() == out.scalar_type() && on_one_device(grad, out),
          "grad must be like out");
  check_float(root, out, "root must be what forward returned");
  require(root.numel() == s.rows, "root must be what forward returned");
  Tensor grad_x = torch::stable::empty_like(out);
  s.grad = grad.const_data_ptr();
  s.out = out.const_data_ptr();
  s.root = floats(root);
  s.grad_x = grad_x.mutable_data_ptr();
  check_launch(cuda::rms_norm_backward(s, device_of(out), stream_of(out)));
  return grad_x;
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CUDA, m) {
  CLA_IMPL(forward);
  CLA_IMPL(backward);
  CLA_IMPL(decayed_forward);
  CLA_IMPL(decayed_backward);
  CLA_IMPL(step);
  CLA_IMPL(norm_step);
  CLA_IMPL(block_step);
  CLA_IMPL(rms_norm);
  CLA_IMPL(rms_norm_forward);
  CLA_IMPL(rms_norm_backward);
}
