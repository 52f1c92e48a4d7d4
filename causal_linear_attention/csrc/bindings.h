// What the CPU and the CUDA bindings share, in torch's stable ABI: one shared object serves every torch
// from 2.10 on and every Python. The operators' schemas are defined in operators.py.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#define CLA_EXPORT extern "C" __attribute__((visibility("default")))

namespace cla {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline Tensor as_contiguous(const Tensor& x) {
  return x.is_contiguous() ? x : torch::stable::contiguous(x);
}

// Kernels read rows whose numbers lie side by side; whatever else the strides are is theirs to handle.
inline Tensor with_dense_rows(const Tensor& x) {
  return x.size(x.dim() - 1) <= 1 || x.stride(x.dim() - 1) == 1 ? x : torch::stable::contiguous(x);
}

inline ScalarType accumulation_type(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

// A new contiguous tensor on the device of `like`. Not torch::stable::new_empty: that looks its operator up
// by name, which takes longer than a decoding step.
template <size_t N>
Tensor empty(const Tensor& like, const int64_t (&sizes)[N], ScalarType dtype) {
  int64_t strides[N];
  int64_t stride = 1;
  for (size_t i = N; i-- > 0; stride *= sizes[i] > 0 ? sizes[i] : 1) strides[i] = stride;
  int32_t type = 0, device = 0, index = 0;
  switch (dtype) {
    case ScalarType::Double:
      type = aoti_torch_dtype_float64();
      break;
    case ScalarType::Half:
      type = aoti_torch_dtype_float16();
      break;
    case ScalarType::BFloat16:
      type = aoti_torch_dtype_bfloat16();
      break;
    default:
      type = aoti_torch_dtype_float32();
  }
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &index));
  AtenTensorHandle made = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(static_cast<int64_t>(N), sizes, strides, type, device, index, &made));
  return Tensor(made);
}

// A new tensor like x, in x's order of dimensions if that has dense rows. _new_like of operators.py
// follows the same rule.
inline Tensor new_like(const Tensor& x) {
  if (!x.is_contiguous()) {
    const Tensor result = torch::stable::empty_like(x);
    if (result.size(3) <= 1 || result.stride(3) == 1) return result;
  }
  return empty(x, {x.size(0), x.size(1), x.size(2), x.size(3)}, x.scalar_type());
}

inline Tensor new_state(const Tensor& q, const Tensor& v, bool normalize) {
  return empty(q, {q.size(0), q.size(1), q.size(3), v.size(3) + normalize}, accumulation_type(q));
}

inline Tensor new_inverse(const Tensor& q, bool normalize) {
  return empty(q, {q.size(0), q.size(1), normalize ? q.size(2) : 0}, accumulation_type(q));
}

inline void require(bool condition, const char* message) {
  if (!condition) throw std::runtime_error(message);
}

// functional.py has checked everything with messages of its own; this keeps a direct call of the operator
// from reading beyond a tensor.
inline void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v,
                         const std::optional<Tensor>& state, bool normalize) {
  require(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "q, k and v must have 4 dimensions");
  require(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
          "q, k and v must have one dtype");
  for (int64_t i = 0; i < 4; ++i) {
    require(q.size(i) == k.size(i), "q and k must have equal shapes");
    require(i == 3 || v.size(i) == k.size(i), "k and v must have equal shapes but for the last size");
  }
  if (!state.has_value()) return;
  require(state->dim() == 4 && state->size(0) == q.size(0) && state->size(1) == q.size(1) &&
              state->size(2) == q.size(3) && state->size(3) == v.size(3) + normalize,
          "state must be (batch, heads, D, M), with a normaliser (batch, heads, D, M + 1)");
  require(state->scalar_type() == accumulation_type(q), "state must be float32 (float64 for float64 inputs)");
}

}  // namespace cla
