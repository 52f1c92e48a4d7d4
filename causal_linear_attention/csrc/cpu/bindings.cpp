// The operators of the CPU.
#include "../bindings.h"

#include <algorithm>

#include "tensors.h"

namespace cla {
namespace {

// functional.py has checked the numbers, but a compiled graph comes here with others.
Packing checked_packing(const Tensor& q, const std::optional<Tensor>& cu_seqlens, bool states) {
  const Packing packing(q, cu_seqlens, states);
  if (packing.offsets == nullptr) return packing;
  const int32_t *const first = packing.offsets, *const last = first + packing.sequences;
  require(*first == 0 && *last == q.size(2) && std::is_sorted(first, last + 1),
          "cu_seqlens must start at 0, never decrease and end at N");
  return packing;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> run_forward(Tensor q, Tensor k, Tensor v, std::optional<Tensor> state,
                                                       const Array& decay, bool normalize, double eps,
                                                       const std::optional<Tensor>& cu_seqlens,
                                                       bool return_state, double scale) {
  const Packing packing = checked_packing(q, cu_seqlens, return_state);
  check_states(state, packing.sequences, k, v, normalize);
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  state = contiguous_state(state);
  Tensor out = new_rows(q, v), inverse = new_inverse(q, normalize);
  Tensor final_state = new_states(packing.states ? packing.sequences : 0, k, v, normalize);
  const Outputs outputs{array_of(out), packing.states ? final_state.mutable_data_ptr() : nullptr,
                        inverse.mutable_data_ptr()};
  Problem problem = problem_of(q, k, v, data_of(state), normalize, eps, packing);
  problem.decay = decay;
  problem.scale = scale;
  forward(problem, outputs, torch_threads());
  return {out, final_state, inverse, new_kept(k, v, normalize, 0)};
}

// These kernels need no states for the backward pass.
std::tuple<Tensor, Tensor, Tensor, Tensor> forward_op(Tensor q, Tensor k, Tensor v, std::optional<Tensor> state,
                                                      bool normalize, double eps, bool,
                                                      std::optional<Tensor> cu_seqlens, bool return_state,
                                                      double scale) {
  check_rows(q, k, v);
  return run_forward(q, k, v, state, {}, normalize, eps, cu_seqlens, return_state, scale);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> decayed_forward_op(Tensor q, Tensor k, Tensor v, Tensor decay,
                                                              std::optional<Tensor> state, bool normalize,
                                                              double eps, bool,
                                                              std::optional<Tensor> cu_seqlens,
                                                              bool return_state, double scale) {
  check_rows(q, k, v);
  return run_forward(q, k, v, state, decays_of(q, k, decay), normalize, eps, cu_seqlens, return_state,
                     scale);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> run_backward(Tensor grad_out, std::optional<Tensor> grad_state,
                                                        Tensor q, Tensor k, Tensor v,
                                                        std::optional<Tensor> state, const Array& decay,
                                                        Tensor inverse, bool normalize, double eps,
                                                        const std::optional<Tensor>& cu_seqlens, double scale,
                                                        void* grad_log_decay) {
  const Packing packing = checked_packing(q, cu_seqlens, state.has_value());
  check_states(state, packing.sequences, k, v, normalize);
  check_states(grad_state, packing.sequences, k, v, normalize);
  check_out(grad_out, q, v, "grad_out must be like forward's output");
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  grad_out = with_dense_rows(grad_out);
  check_inverse(inverse, q, normalize);
  inverse = as_contiguous(inverse);
  state = contiguous_state(state);
  grad_state = contiguous_state(grad_state);
  Tensor grad_q = new_like(q), grad_k = new_rows(q, k), grad_v = new_rows(q, v);
  Tensor grad_initial = new_states(packing.states ? packing.sequences : 0, q, v, normalize);
  const Gradients gradients{array_of(grad_out), data_of(grad_state), inverse.const_data_ptr(),
                            array_of(grad_q),   array_of(grad_k),    array_of(grad_v),
                            packing.states ? grad_initial.mutable_data_ptr() : nullptr,
                            nullptr,
                            {},
                            grad_log_decay};
  Problem problem = problem_of(q, k, v, data_of(state), normalize, eps, packing);
  problem.decay = decay;
  problem.scale = scale;
  backward(problem, gradients, torch_threads());
  return {grad_q, grad_k, grad_v, grad_initial};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_op(Tensor grad_out, std::optional<Tensor> grad_state,
                                                       Tensor q, Tensor k, Tensor v,
                                                       std::optional<Tensor> state, Tensor inverse, Tensor,
                                                       bool normalize, double eps, std::optional<Tensor>,
                                                       std::optional<Tensor> cu_seqlens, double scale) {
  check_rows(q, k, v);
  return run_backward(grad_out, grad_state, q, k, v, state, {}, inverse, normalize, eps, cu_seqlens, scale, nullptr);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> decayed_backward_op(
    Tensor grad_out, std::optional<Tensor> grad_state, Tensor q, Tensor k, Tensor v, Tensor decay,
    std::optional<Tensor> state, Tensor inverse, Tensor, bool normalize, double eps, std::optional<Tensor>,
    std::optional<Tensor> cu_seqlens, double scale) {
  check_rows(q, k, v);
  const Array decays = decays_of(q, k, decay);
  Tensor grad_decay = empty({q.size(0), q.size(1), q.size(2)}, accumulation_type(q));
  auto [grad_q, grad_k, grad_v, grad_initial] = run_backward(grad_out, grad_state, q, k, v, state, decays, inverse,
                                                             normalize, eps, cu_seqlens, scale,
                                                             grad_decay.mutable_data_ptr());
  return {grad_q, grad_k, grad_v, grad_initial, grad_decay};
}

std::tuple<Tensor, Tensor> step_op(Tensor q, Tensor k, Tensor v, Tensor state, bool normalize, double eps,
                                   std::optional<Tensor> decay, double scale) {
  check_step(q, k, v, state, normalize);
  const Array decays = decays_of(q, k, decay);
  q = as_contiguous(q);
  k = as_contiguous(k);
  v = as_contiguous(v);
  state = as_contiguous(state);
  Tensor out = empty({q.size(0), q.size(1), v.size(2)}, v.scalar_type());
  Tensor state_out =
      empty({state.size(0), state.size(1), state.size(2), state.size(3)}, state.scalar_type());
  Problem problem = step_of(q, k, v, state, normalize, eps);
  problem.decay = decays;
  problem.scale = scale;
  step(problem, out.mutable_data_ptr(), state_out.mutable_data_ptr(), torch_threads());
  return {out, state_out};
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CPU, m) {
  CLA_IMPL(forward);
  CLA_IMPL(backward);
  CLA_IMPL(decayed_forward);
  CLA_IMPL(decayed_backward);
  CLA_IMPL(step);
}

// For build information and tests, through ctypes: the result lives until the next call on the thread.

CLA_EXPORT const char* cla_cpu_isa() { return cla::current_kernels().name; }

CLA_EXPORT const char* cla_cpu_available_isa() {
  static thread_local std::string names;
  names.clear();
  for (const cla::Kernels* kernels : cla::available_kernels()) names.append(kernels->name).append(" ");
  return names.c_str();
}

// The reason why `name` cannot be chosen, or an empty string. An empty name is the default.
CLA_EXPORT const char* cla_cpu_choose_isa(const char* name) {
  static thread_local std::string reason;
  reason.clear();
  try {
    cla::choose_kernels(name);
  } catch (const std::runtime_error& error) {
    reason = error.what();
  }
  return reason.c_str();
}
