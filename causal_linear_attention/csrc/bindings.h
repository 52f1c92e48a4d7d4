// What the CPU and the CUDA bindings share, in torch's stable ABI: one shared object serves every Python and
// every torch from the oldest in pyproject.toml on. The operators' schemas are defined in operators.py.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "problem.h"

#define CLA_EXPORT extern "C" __attribute__((visibility("default")))

// What made the last of torch's functions fail on this thread; null before torch 2.13.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

namespace cla {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Most tensors are contiguous, and torch::stable::contiguous looks its operator up by name even for them.
inline Tensor as_contiguous(const Tensor& x) {
  return x.is_contiguous() ? x : torch::stable::contiguous(x);
}

inline std::optional<Tensor> contiguous_state(const std::optional<Tensor>& state) {
  return state.has_value() ? std::optional<Tensor>(as_contiguous(*state)) : std::nullopt;
}

// Kernels read rows whose numbers lie side by side; whatever else the strides are is theirs to handle.
inline Tensor with_dense_rows(const Tensor& x) {
  return x.size(x.dim() - 1) <= 1 || x.stride(x.dim() - 1) == 1 ? x : torch::stable::contiguous(x);
}

inline ScalarType accumulation_type(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// Heads of q for each of k.
inline int64_t group_of(const Tensor& q, const Tensor& k) { return q.size(1) > k.size(1) ? q.size(1) / k.size(1) : 1; }

// A new tensor like x, in x's order of dimensions if that has dense rows. new_like of operators.py
// follows the same rule.
inline Tensor new_like(const Tensor& x) {
  const Tensor result = torch::stable::empty_like(x);
  if (result.size(3) <= 1 || result.stride(3) == 1) return result;
  return torch::stable::new_empty(x, x.sizes());
}

// x with q's heads, in q's order of heads and rows if x has others. new_rows of operators.py follows the same rule.
inline Tensor new_rows(const Tensor& q, const Tensor& x) {
  if (q.size(1) == x.size(1)) return new_like(x);
  const bool by_heads = q.stride(1) >= q.stride(2);
  const int64_t size[] = {q.size(0), q.size(by_heads ? 1 : 2), q.size(by_heads ? 2 : 1), x.size(3)};
  const Tensor result = torch::stable::new_empty(x, {size, 4});
  return by_heads ? result : torch::stable::transpose(result, 1, 2);
}

// Of the heads of x, q or k.
inline Tensor new_states(int64_t count, const Tensor& x, const Tensor& v, bool normalize) {
  const int64_t size[] = {count, x.size(1), x.size(3), v.size(3) + normalize};
  return torch::stable::new_empty(x, {size, 4}, accumulation_type(x));
}

inline Tensor new_inverse(const Tensor& q, bool normalize) {
  const int64_t size[] = {q.size(0), q.size(1), normalize ? q.size(2) : 0};
  return torch::stable::new_empty(q, {size, 3}, accumulation_type(q));
}

// `count` states of every head of k, which the CUDA kernels' forward pass keeps for their backward pass.
inline Tensor new_kept(const Tensor& k, const Tensor& v, bool normalize, int64_t count) {
  const int64_t size[] = {k.size(0), k.size(1), count, k.size(3), v.size(3) + normalize};
  return torch::stable::new_empty(k, {size, 5}, accumulation_type(k));
}

inline void require(bool condition, const char* message) {
  if (!condition) throw std::runtime_error(message);
}

// The stable functions report that they failed, but not why. Out of memory is what callers look for in a message.
inline std::string reason_of(const std::string& failure) {
  if (failure.find(" API call failed at ") == std::string::npos) return failure;
  if (torch_exception_get_what_without_backtrace != nullptr) return torch_exception_get_what_without_backtrace();
  const bool allocates =
      failure.find("empty") != std::string::npos || failure.find("contiguous") != std::string::npos;
  return allocates ? "probably out of memory: " + failure : failure;
}

// kOperator with the reason in its errors.
template <auto kOperator>
struct Explained;
template <class Result, class... Arguments, Result (*kOperator)(Arguments...)>
struct Explained<kOperator> {
  static Result run(Arguments... arguments) {
    try {
      return kOperator(std::move(arguments)...);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(reason_of(error.what()));
    }
  }
};

#define CLA_IMPL(name) m.impl(#name, TORCH_BOX(&cla::Explained<&cla::name##_op>::run))

inline bool on_one_device(const Tensor& x, const Tensor& y) {
  return x.is_cpu() == y.is_cpu() && x.is_cuda() == y.is_cuda() &&
         x.get_device_index() == y.get_device_index();
}

inline Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return Dtype::f32;
    case ScalarType::Double:
      return Dtype::f64;
    case ScalarType::BFloat16:
      return Dtype::bf16;
    case ScalarType::Half:
      return Dtype::f16;
    default:
      throw std::runtime_error("expected float32, float64, bfloat16 or float16");
  }
}

inline const void* data_of(const std::optional<Tensor>& x) {
  return x.has_value() ? x->const_data_ptr() : nullptr;
}

inline Array array_of(const Tensor& x, int64_t group = 1) {
  return {const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2), group};
}

// Where the sequences of a packed row begin and end (see Problem), and whether the states are wanted that a pass ends
// with: for short sequences they are larger than the outputs. Without cu_seqlens they always are.
struct Packing {
  std::optional<Tensor> kept;  // whose numbers the offsets are
  const int32_t* offsets = nullptr;
  int64_t sequences;
  bool states = true;

  Packing(const Tensor& q, const std::optional<Tensor>& cu_seqlens, bool wanted) : sequences(q.size(0)) {
    if (!cu_seqlens.has_value()) return;
    require(q.size(0) == 1, "packed sequences need a batch of 1");
    require(on_one_device(q, *cu_seqlens) && cu_seqlens->scalar_type() == ScalarType::Int &&
                cu_seqlens->dim() == 1 && cu_seqlens->size(0) > 1,
            "cu_seqlens must be an int32 tensor (S + 1) on the device of q");
    kept = as_contiguous(*cu_seqlens);
    offsets = static_cast<const int32_t*>(kept->const_data_ptr());
    sequences = cu_seqlens->size(0) - 1;
    states = wanted;
  }
};

inline Problem problem_of(const Tensor& q, const Tensor& k, const Tensor& v, const void* state, bool normalize,
                          double eps, const Packing& packing) {
  Problem p;
  p.offsets = packing.offsets;
  p.sequences = packing.sequences;
  p.batch = q.size(0);
  p.heads = q.size(1);
  p.rows = q.size(2);
  p.depth = q.size(3);
  p.width = v.size(3);
  p.dtype = dtype_of(q);
  p.normalize = normalize;
  p.eps = eps;
  p.q = array_of(q);
  p.k = array_of(k, group_of(q, k));
  p.v = array_of(v, group_of(q, k));
  p.state = state;
  return p;
}

inline void check_states(const std::optional<Tensor>& state, int64_t count, const Tensor& k, const Tensor& v,
                         bool normalize) {
  if (!state.has_value()) return;
  require(state->dim() == 4 && state->size(0) == count && state->size(1) == k.size(1) &&
              state->size(2) == k.size(3) && state->size(3) == v.size(3) + normalize,
          "state must be (batch or sequences, heads of k, D, M), with a normaliser (..., D, M + 1)");
  require(on_one_device(k, *state), "state must be on the device of q");
  require(state->scalar_type() == accumulation_type(k), "state must be float32 (float64 for float64 inputs)");
}

// functional.py has checked everything with messages of its own; this keeps a direct call of the operator
// from reading beyond a tensor.
inline void check_rows(const Tensor& q, const Tensor& k, const Tensor& v) {
  require(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "q, k and v must have 4 dimensions");
  require(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
          "q, k and v must have one dtype");
  require(on_one_device(q, k) && on_one_device(q, v), "q, k and v must be on one device");
  for (int64_t i = 0; i < 4; ++i) {
    require(q.size(i) == k.size(i) || (i == 1 && k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0),
            "q and k must have equal shapes, but q may have a multiple of k's heads");
    require(i == 3 || v.size(i) == k.size(i), "k and v must have equal shapes but for the last size");
  }
}

// `out` as forward returned it, or its gradient.
inline void check_out(const Tensor& out, const Tensor& q, const Tensor& v, const char* message) {
  require(out.dim() == 4 && out.scalar_type() == v.scalar_type() && on_one_device(out, v) &&
              out.size(0) == q.size(0) && out.size(1) == q.size(1) && out.size(2) == q.size(2) &&
              out.size(3) == v.size(3),
          message);
}

inline void check_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state, bool normalize) {
  require(q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && state.dim() == 4,
          "q, k and v must have 3 dimensions, state 4");
  for (int64_t i = 0; i < 3; ++i) {
    require(q.size(i) == k.size(i) || (i == 1 && k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0),
            "q and k must have equal shapes, but q may have a multiple of k's heads");
    require(i == 2 || (v.size(i) == k.size(i) && state.size(i) == k.size(i)),
            "k, v and state must have equal batch and heads");
  }
  require(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type() &&
              state.scalar_type() == accumulation_type(q),
          "q, k and v must have one dtype, state float32 (float64 for float64 inputs)");
  require(on_one_device(q, k) && on_one_device(q, v) && on_one_device(q, state),
          "q, k, v and state must be on one device");
  require(state.size(2) == q.size(2) && state.size(3) == v.size(2) + normalize,
          "state must be (batch, heads of k, D, M), with a normaliser (..., D, M + 1)");
}

// Of contiguous tensors.
inline Problem step_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& state, bool normalize,
                       double eps) {
  Problem p;
  p.batch = q.size(0);
  p.heads = q.size(1);
  p.rows = 1;
  p.depth = q.size(2);
  p.width = v.size(2);
  p.dtype = dtype_of(q);
  p.normalize = normalize;
  p.eps = eps;
  p.q.data = const_cast<void*>(q.const_data_ptr());
  p.k.data = const_cast<void*>(k.const_data_ptr());
  p.k.group = group_of(q, k);
  p.v.data = const_cast<void*>(v.const_data_ptr());
  p.state = state.const_data_ptr();
  return p;
}

// Decays (heads), or (batch, heads, rows), of k's heads and accumulation type, whatever their strides; of a step without
// rows.
inline Array decays_of(const Tensor& q, const Tensor& k, const std::optional<Tensor>& decay) {
  Array array;
  if (!decay.has_value()) return array;
  const bool of_heads = decay->dim() == 1;
  bool fits = of_heads ? decay->size(0) == k.size(1) : decay->dim() == k.dim() - 1;
  for (int64_t i = 0; fits && !of_heads && i < decay->dim(); ++i) fits = decay->size(i) == k.size(i);
  require(fits, k.dim() == 4 ? "decay must be (heads) or (batch, heads, rows)"
                             : "decay must be (heads) or (batch, heads)");
  require(decay->scalar_type() == accumulation_type(k) && on_one_device(k, *decay),
          "decay must be float32 (float64 for float64 inputs) and on the device of q");
  array.data = const_cast<void*>(decay->const_data_ptr());
  array.group = group_of(q, k);
  array.head = decay->stride(of_heads ? 0 : 1);
  if (!of_heads) array.batch = decay->stride(0);
  if (!of_heads && k.dim() == 4) array.row = decay->stride(2);
  return array;
}

// `inverse` as forward returned it.
inline void check_inverse(const Tensor& inverse, const Tensor& q, bool normalize) {
  require(inverse.numel() == (normalize ? q.size(0) * q.size(1) * q.size(2) : 0) &&
              inverse.scalar_type() == accumulation_type(q) && on_one_device(q, inverse),
          "inverse must be what forward returned");
}

}  // namespace cla
