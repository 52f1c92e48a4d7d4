// The checks that the CPU's and the CUDA bindings of decoding.h share.
#pragma once

#include "bindings.h"
#include "decoding.h"

namespace cla {

inline const float* floats(const Tensor& x) { return static_cast<const float*>(x.const_data_ptr()); }
inline float* floats_of(Tensor& x) { return static_cast<float*>(x.mutable_data_ptr()); }

inline void check_float(const Tensor& x, const Tensor& q, const char* message) {
  require(x.scalar_type() == ScalarType::Float && x.is_contiguous() && on_one_device(x, q), message);
}

inline Turn turn_of(const Tensor& q, const Tensor& direction, const Tensor& theta, const Tensor& positions,
                    double scale) {
  check_float(direction, q, "direction must be float32 and contiguous");
  require(direction.dim() == 1 && direction.size(0) == q.size(3), "direction must be (D)");
  require(theta.scalar_type() == ScalarType::Double && theta.is_contiguous() && theta.dim() == 1 &&
              theta.size(0) == q.size(3) / 2 && on_one_device(theta, q),
          "theta must be (D / 2), float64");
  require(positions.scalar_type() == ScalarType::Long && positions.is_contiguous() &&
              positions.dim() == 1 && positions.size(0) == q.size(0) && on_one_device(positions, q),
          "positions must be (batch), int64");
  Turn turn;
  turn.direction = floats(direction);
  turn.theta = static_cast<const double*>(theta.const_data_ptr());
  turn.positions = static_cast<const int64_t*>(positions.const_data_ptr());
  turn.scale = static_cast<float>(scale);
  return turn;
}

// Makes q, k and v contiguous.
template <class AStep>
void set_tokens(AStep& s, Tensor& q, Tensor& k, Tensor& v) {
  q = as_contiguous(q);
  k = as_contiguous(k);
  v = as_contiguous(v);
  require(q.dim() == 4 && q.size(2) == 1, "q must be (batch, heads, 1, D)");
  require(k.dim() == 4 && v.dim() == 4, "k and v must have q's shape");
  for (int64_t i = 0; i < 4; ++i) {
    require(k.size(i) == q.size(i) && v.size(i) == q.size(i), "k and v must have q's shape");
  }
  for (const Tensor* x : {&q, &k, &v}) check_float(*x, q, "q, k and v must be float32");
  s.batch = q.size(0);
  s.heads = q.size(1);
  s.dim = q.size(3);
  s.q = floats(q);
  s.k = floats(k);
  s.v = floats(v);
}

// Whatever the device; makes its arguments contiguous, which own what the result points to.
inline NormStep norm_step_of(Tensor& q, Tensor& k, Tensor& v, const Tensor& direction, const Tensor& theta,
                             const Tensor& positions, Tensor& state, bool one_plus) {
  NormStep s;
  set_tokens(s, q, k, v);
  state = as_contiguous(state);
  check_float(state, q, "state must be float32");
  require(state.dim() == 4 && state.size(0) == q.size(0) && state.size(1) == q.size(1) &&
              state.size(2) == q.size(3) && state.size(3) == q.size(3),
          "state must be (batch, heads, D, D)");
  s.turn = turn_of(q, direction, theta, positions, 1);
  s.one_plus = one_plus;
  s.state = floats(state);
  return s;
}

// The same.
inline BlockStep block_step_of(Tensor& q, Tensor& k, Tensor& v, const Tensor& direction, const Tensor& theta,
                               double scale, const Tensor& places, Tensor& keys, Tensor& values, bool softmax) {
  BlockStep s;
  set_tokens(s, q, k, v);
  for (const Tensor* x : {&keys, &values}) {
    check_float(*x, q, "keys and values must be float32 and contiguous");
    require(x->dim() == 4 && x->size(0) == q.size(0) && x->size(1) == q.size(1) &&
                x->size(2) == keys.size(2) && x->size(3) == q.size(3),
            "keys and values must be (batch, heads, size, D)");
  }
  s.size = keys.size(2);
  s.turn = turn_of(q, direction, theta, places, scale);
  s.softmax = softmax;
  s.keys = floats_of(keys);
  s.values = floats_of(values);
  return s;
}

}  // namespace cla
