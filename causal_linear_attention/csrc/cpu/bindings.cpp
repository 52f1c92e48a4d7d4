// The operators of the CPU.
#include "../bindings.h"

#include <algorithm>

#include "tensors.h"

namespace cla {
namespace {

// Where the sequences of a packed row begin and end (see Problem), and whether the states are wanted that a
// pass ends with: for short sequences they are larger than the outputs.
struct Packing {
  std::optional<Tensor> kept;  // whose numbers the offsets are
  const int32_t* offsets = nullptr;
  int64_t sequences = 0;
  bool states = true;

  // functional.py has checked the numbers, but a compiled graph comes here with others.
  Packing(const Tensor& cu_seqlens, const Tensor& q, bool wanted) : states(wanted) {
    require(q.size(0) == 1, "packed sequences need a batch of 1");
    require(cu_seqlens.is_cpu() && cu_seqlens.scalar_type() == ScalarType::Int && cu_seqlens.dim() == 1 &&
                cu_seqlens.size(0) > 1,
            "cu_seqlens must be an int32 tensor (S + 1) on the CPU");
    kept = as_contiguous(cu_seqlens);
    offsets = static_cast<const int32_t*>(kept->const_data_ptr());
    sequences = cu_seqlens.size(0) - 1;
    require(offsets[0] == 0 && offsets[sequences] == q.size(2) &&
                std::is_sorted(offsets, offsets + sequences + 1),
            "cu_seqlens must start at 0, never decrease and end at N");
  }
  explicit Packing(const Tensor& q) : sequences(q.size(0)) {}
};

Problem packed_problem(const Packing& packing, const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& state, bool normalize, double eps) {
  Problem p = problem_of(q, k, v, data_of(state), normalize, eps);
  p.offsets = packing.offsets;
  p.sequences = packing.sequences;
  return p;
}

std::tuple<Tensor, Tensor, Tensor> run_forward(const Packing& packing, Tensor q, Tensor k, Tensor v,
                                               std::optional<Tensor> state, bool normalize, double eps) {
  check_states(state, packing.sequences, q, v, normalize);
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  state = contiguous_state(state);
  Tensor out = new_like(v), inverse = new_inverse(q, normalize);
  Tensor final_state = new_states(packing.states ? packing.sequences : 0, q, v, normalize);
  const Outputs outputs{array_of(out), packing.states ? final_state.mutable_data_ptr() : nullptr,
                        inverse.mutable_data_ptr()};
  forward(packed_problem(packing, q, k, v, state, normalize, eps), outputs, torch_threads());
  return {out, final_state, inverse};
}

// These kernels need no states for the backward pass.
std::tuple<Tensor, Tensor, Tensor, Tensor> forward_op(Tensor q, Tensor k, Tensor v, std::optional<Tensor> state,
                                                      bool normalize, double eps, bool) {
  check_rows(q, k, v);
  const auto [out, final_state, inverse] = run_forward(Packing(q), q, k, v, state, normalize, eps);
  return {out, final_state, inverse, new_kept(q, v, normalize, 0)};
}

std::tuple<Tensor, Tensor, Tensor> packed_forward_op(Tensor q, Tensor k, Tensor v,
                                                     std::optional<Tensor> state, bool normalize, double eps,
                                                     Tensor cu_seqlens, bool return_state) {
  check_rows(q, k, v);
  return run_forward(Packing(cu_seqlens, q, return_state), q, k, v, state, normalize, eps);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> run_backward(const Packing& packing, Tensor grad_out,
                                                        std::optional<Tensor> grad_state, Tensor q, Tensor k,
                                                        Tensor v, std::optional<Tensor> state, Tensor inverse,
                                                        bool normalize, double eps) {
  check_rows(q, k, grad_out);
  check_states(state, packing.sequences, q, v, normalize);
  check_states(grad_state, packing.sequences, q, v, normalize);
  require(v.size(3) == grad_out.size(3), "grad_out must be shaped like v");
  q = with_dense_rows(q);
  k = with_dense_rows(k);
  v = with_dense_rows(v);
  grad_out = with_dense_rows(grad_out);
  check_inverse(inverse, q, normalize);
  inverse = as_contiguous(inverse);
  state = contiguous_state(state);
  grad_state = contiguous_state(grad_state);
  Tensor grad_q = new_like(q), grad_k = new_like(k), grad_v = new_like(v);
  Tensor grad_initial = new_states(packing.states ? packing.sequences : 0, q, v, normalize);
  const Gradients gradients{array_of(grad_out), data_of(grad_state), inverse.const_data_ptr(),
                            array_of(grad_q),   array_of(grad_k),    array_of(grad_v),
                            packing.states ? grad_initial.mutable_data_ptr() : nullptr};
  backward(packed_problem(packing, q, k, v, state, normalize, eps), gradients, torch_threads());
  return {grad_q, grad_k, grad_v, grad_initial};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_op(Tensor grad_out, std::optional<Tensor> grad_state,
                                                       Tensor q, Tensor k, Tensor v,
                                                       std::optional<Tensor> state, Tensor inverse, Tensor,
                                                       bool normalize, double eps) {
  check_rows(q, k, v);
  return run_backward(Packing(q), grad_out, grad_state, q, k, v, state, inverse, normalize, eps);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> packed_backward_op(Tensor grad_out,
                                                              std::optional<Tensor> grad_state, Tensor q,
                                                              Tensor k, Tensor v, std::optional<Tensor> state,
                                                              Tensor inverse, bool normalize, double eps,
                                                              Tensor cu_seqlens) {
  check_rows(q, k, v);
  const Packing packing(cu_seqlens, q, state.has_value());
  return run_backward(packing, grad_out, grad_state, q, k, v, state, inverse, normalize, eps);
}

std::tuple<Tensor, Tensor> step_op(Tensor q, Tensor k, Tensor v, Tensor state, bool normalize, double eps) {
  check_step(q, k, v, state, normalize);
  q = as_contiguous(q);
  k = as_contiguous(k);
  v = as_contiguous(v);
  state = as_contiguous(state);
  Tensor out = empty({v.size(0), v.size(1), v.size(2)}, v.scalar_type());
  Tensor state_out =
      empty({state.size(0), state.size(1), state.size(2), state.size(3)}, state.scalar_type());
  step(step_of(q, k, v, state, normalize, eps), out.mutable_data_ptr(), state_out.mutable_data_ptr(),
       torch_threads());
  return {out, state_out};
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CPU, m) {
  m.impl("forward", TORCH_BOX(&cla::forward_op));
  m.impl("backward", TORCH_BOX(&cla::backward_op));
  m.impl("packed_forward", TORCH_BOX(&cla::packed_forward_op));
  m.impl("packed_backward", TORCH_BOX(&cla::packed_backward_op));
  m.impl("step", TORCH_BOX(&cla::step_op));
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
