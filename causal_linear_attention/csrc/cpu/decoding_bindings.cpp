// The operators of decoding.h, for float32 on the CPU.
#include "../bindings.h"

#include "decoding.h"
#include "tensors.h"

namespace cla {
namespace {

void check_float(const Tensor& x, const char* message) {
  require(x.scalar_type() == ScalarType::Float && x.is_contiguous(), message);
}

void check_tokens(const Tensor& q, const Tensor& k, const Tensor& v) {
  require(q.dim() == 4 && q.size(2) == 1, "q must be (batch, heads, 1, D)");
  require(k.dim() == 4 && v.dim() == 4, "k and v must have q's shape");
  for (int64_t i = 0; i < 4; ++i) {
    require(k.size(i) == q.size(i) && v.size(i) == q.size(i), "k and v must have q's shape");
  }
  for (const Tensor* x : {&q, &k, &v}) check_float(*x, "q, k and v must be float32");
}

Turn turn_of(const Tensor& q, const Tensor& direction, const Tensor& theta, const Tensor& positions,
             double scale) {
  check_float(direction, "direction must be float32 and contiguous");
  require(direction.dim() == 1 && direction.size(0) == q.size(3), "direction must be (D)");
  require(theta.scalar_type() == ScalarType::Double && theta.is_contiguous() && theta.dim() == 1 &&
              theta.size(0) == q.size(3) / 2,
          "theta must be (D / 2), float64");
  require(positions.scalar_type() == ScalarType::Long && positions.is_contiguous() &&
              positions.dim() == 1 && positions.size(0) == q.size(0),
          "positions must be (batch), int64");
  Turn turn;
  turn.direction = static_cast<const float*>(direction.const_data_ptr());
  turn.theta = static_cast<const double*>(theta.const_data_ptr());
  turn.positions = static_cast<const int64_t*>(positions.const_data_ptr());
  turn.scale = static_cast<float>(scale);
  return turn;
}

const float* floats(const Tensor& x) { return static_cast<const float*>(x.const_data_ptr()); }
float* floats_of(Tensor& x) { return static_cast<float*>(x.mutable_data_ptr()); }

template <class AStep>
void set_tokens(AStep& s, const Tensor& q, const Tensor& k, const Tensor& v) {
  s.batch = q.size(0);
  s.heads = q.size(1);
  s.dim = q.size(3);
  s.q = floats(q);
  s.k = floats(k);
  s.v = floats(v);
}

std::tuple<Tensor, Tensor> norm_step_op(Tensor q, Tensor k, Tensor v, Tensor direction, Tensor theta,
                                        Tensor positions, Tensor state, bool one_plus) {
  q = as_contiguous(q);
  k = as_contiguous(k);
  v = as_contiguous(v);
  state = as_contiguous(state);
  check_tokens(q, k, v);
  check_float(state, "state must be float32");
  require(state.dim() == 4 && state.size(0) == q.size(0) && state.size(1) == q.size(1) &&
              state.size(2) == q.size(3) && state.size(3) == q.size(3),
          "state must be (batch, heads, D, D)");
  NormStep s;
  set_tokens(s, q, k, v);
  s.turn = turn_of(q, direction, theta, positions, 1);
  s.one_plus = one_plus;
  s.state = floats(state);
  Tensor out = empty({s.batch, s.heads, 1, s.dim}, ScalarType::Float);
  Tensor state_out = empty({s.batch, s.heads, s.dim, s.dim}, ScalarType::Float);
  norm_step(s, floats_of(out), floats_of(state_out), torch_threads());
  return {out, state_out};
}

Tensor block_step_op(Tensor q, Tensor k, Tensor v, Tensor direction, Tensor theta, double scale,
                     Tensor places, Tensor keys, Tensor values, bool softmax) {
  q = as_contiguous(q);
  k = as_contiguous(k);
  v = as_contiguous(v);
  check_tokens(q, k, v);
  for (const Tensor* x : {&keys, &values}) {
    check_float(*x, "keys and values must be float32 and contiguous");
    require(x->dim() == 4 && x->size(0) == q.size(0) && x->size(1) == q.size(1) &&
                x->size(2) == keys.size(2) && x->size(3) == q.size(3),
            "keys and values must be (batch, heads, size, D)");
  }
  BlockStep s;
  set_tokens(s, q, k, v);
  s.size = keys.size(2);
  s.turn = turn_of(q, direction, theta, places, scale);
  for (int64_t b = 0; b < s.batch; ++b) {
    require(s.turn.positions[b] >= 0 && s.turn.positions[b] < s.size, "places must be from 0 to size - 1");
  }
  s.softmax = softmax;
  s.keys = floats_of(keys);
  s.values = floats_of(values);
  Tensor out = empty({s.batch, s.heads, 1, s.dim}, ScalarType::Float);
  block_step(s, floats_of(out), torch_threads());
  return out;
}

Tensor rms_norm_op(Tensor x, double eps) {
  x = as_contiguous(x);
  check_float(x, "x must be float32");
  require(x.dim() > 0, "x must have a last dimension");
  Tensor out = torch::stable::empty_like(x);
  const int64_t width = x.size(x.dim() - 1);
  if (x.numel() > 0) rms_norm(floats(x), x.numel() / width, width, eps, floats_of(out), torch_threads());
  return out;
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CPU, m) {
  m.impl("norm_step", TORCH_BOX(&cla::norm_step_op));
  m.impl("block_step", TORCH_BOX(&cla::block_step_op));
  m.impl("rms_norm", TORCH_BOX(&cla::rms_norm_op));
}
