// The operators of fused.h on the CPU; their schemas are in fused.py.
#include "../fused_bindings.h"

#include "fused.h"
#include "tensors.h"

namespace cla {
namespace {

Tensor nothing(const Tensor& like) { return empty({0}, like.scalar_type()); }

std::tuple<Tensor, Tensor, Tensor> residual_op(Tensor x, std::optional<Tensor> y, std::optional<Tensor> seed,
                                               double p, double eps, bool norm, bool keep) {
  x = as_contiguous(x);
  Residual s;
  s.width = last_size(x);
  s.rows = rows_of(x);
  s.dtype = dtype_of(x);
  s.eps = eps;
  s.x = x.const_data_ptr();
  Tensor sum = nothing(x), out = nothing(x), root = empty({norm ? s.rows : 0}, accumulation_type(x));
  if (y.has_value()) {
    check_like(*y, x, "y must be like x");
    y = as_contiguous(*y);
    s.y = y->const_data_ptr();
    s.dropout = dropout_of(seed, p, x);
    if (keep) {
      sum = torch::stable::empty_like(x);
      s.sum = sum.mutable_data_ptr();
    }
  }
  if (norm) {
    out = torch::stable::empty_like(x);
    s.out = out.mutable_data_ptr();
    s.root = root.mutable_data_ptr();
  }
  residual(s, torch_threads());
  return {sum, out, root};
}

std::tuple<Tensor, Tensor> residual_backward_op(std::optional<Tensor> grad_sum, std::optional<Tensor> grad_out,
                                                Tensor out, Tensor root, std::optional<Tensor> seed, double p,
                                                double eps) {
  require(grad_sum.has_value() || grad_out.has_value(), "a gradient must be given");
  const Tensor& like = grad_out.has_value() ? *grad_out : *grad_sum;
  ResidualGradient s;
  s.width = last_size(like);
  s.rows = rows_of(like);
  s.dtype = dtype_of(like);
  s.eps = eps;
  if (grad_out.has_value()) {
    check_like(*grad_out, out, "grad_out must be like out");
    require(root.numel() == s.rows && root.scalar_type() == accumulation_type(out) && root.is_contiguous(),
            "root must be what forward returned");
    grad_out = as_contiguous(*grad_out);
    out = as_contiguous(out);
    s.grad_out = grad_out->const_data_ptr();
    s.out = out.const_data_ptr();
    s.root = root.const_data_ptr();
  }
  if (grad_sum.has_value()) {
    check_like(*grad_sum, like, "grad_sum must be like grad_out");
    grad_sum = as_contiguous(*grad_sum);
    s.grad_sum = grad_sum->const_data_ptr();
  }
  s.dropout = dropout_of(seed, p, like);
  Tensor grad_x = torch::stable::new_empty(like, like.sizes());
  Tensor grad_y = seed.has_value() ? torch::stable::new_empty(like, like.sizes()) : nothing(like);
  s.grad_x = grad_x.mutable_data_ptr();
  if (seed.has_value()) s.grad_y = grad_y.mutable_data_ptr();
  residual_gradient(s, torch_threads());
  return {grad_x, grad_y};
}

int64_t gated_width(const Tensor& inputs) {
  require(inputs.dim() == 2 && inputs.size(1) % 2 == 0, "inputs must be (rows, 2 width)");
  return inputs.size(1) / 2;
}

Tensor gated_op(Tensor inputs) {
  inputs = as_contiguous(inputs);
  Gated s;
  s.width = gated_width(inputs);
  s.rows = inputs.size(0);
  s.dtype = dtype_of(inputs);
  Tensor out = empty({s.rows, s.width}, inputs.scalar_type());
  s.inputs = inputs.const_data_ptr();
  s.out = out.mutable_data_ptr();
  gated(s, torch_threads());
  return out;
}

std::tuple<Tensor, Tensor> gated_backward_op(Tensor grad, Tensor inputs) {
  inputs = as_contiguous(inputs);
  grad = as_contiguous(grad);
  GatedGradient s;
  s.width = gated_width(inputs);
  s.rows = inputs.size(0);
  s.dtype = dtype_of(inputs);
  require(grad.dim() == 2 && grad.size(0) == s.rows && grad.size(1) == s.width &&
              grad.scalar_type() == inputs.scalar_type() && on_one_device(grad, inputs),
          "grad must be like the output");
  Tensor out = empty({s.rows, s.width}, inputs.scalar_type()), grad_inputs = torch::stable::empty_like(inputs);
  s.inputs = inputs.const_data_ptr();
  s.grad = grad.const_data_ptr();
  s.out = out.mutable_data_ptr();
  s.grad_inputs = grad_inputs.mutable_data_ptr();
  gated_gradient(s, torch_threads());
  return {grad_inputs, out};
}

std::tuple<Tensor, Tensor> features_op(Tensor qkv, std::optional<Tensor> direction, std::optional<Tensor> theta,
                                       int64_t heads, int64_t map, double scale) {
  Features s;
  s.inputs = joined_of(qkv, heads);
  s.map = map_of(map);
  s.rotation = rotation_of(direction, theta, scale, s.inputs, qkv);
  const Joined& x = s.inputs;
  Tensor q = empty({x.batch, x.heads, x.length, x.dim}, qkv.scalar_type());
  Tensor k = empty({x.batch, x.heads, x.length, x.dim}, qkv.scalar_type());
  s.q = q.mutable_data_ptr();
  s.k = k.mutable_data_ptr();
  features(s, torch_threads());
  return {q, k};
}

Tensor new_theta_gradient(const std::optional<Tensor>& theta, const Tensor& qkv) {
  if (!theta.has_value()) return empty({0}, accumulation_type(qkv));
  return empty({theta->numel()}, type_of_gradient(*theta));
}

std::tuple<Tensor, Tensor> features_backward_op(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor qkv,
                                                std::optional<Tensor> direction, std::optional<Tensor> theta,
                                                int64_t heads, int64_t map, double scale) {
  FeaturesGradient s;
  s.inputs = joined_of(qkv, heads);
  s.map = map_of(map);
  s.rotation = rotation_of(direction, theta, scale, s.inputs, qkv);
  const Joined& x = s.inputs;
  for (Tensor* grad : {&grad_q, &grad_k, &grad_v}) {
    *grad = with_dense_rows(*grad);
    require(grad->dim() == 4 && grad->size(0) == x.batch && grad->size(1) == x.heads && grad->size(2) == x.length &&
                grad->size(3) == x.dim && grad->scalar_type() == qkv.scalar_type() && on_one_device(*grad, qkv),
            "gradients must be (batch, heads, length, D / heads) of qkv's dtype");
  }
  s.grad_q = array_of(grad_q);
  s.grad_k = array_of(grad_k);
  s.grad_v = array_of(grad_v);
  Tensor grad_qkv = torch::stable::empty_like(qkv), grad_theta = new_theta_gradient(theta, qkv);
  s.grad_qkv = grad_qkv.mutable_data_ptr();
  if (theta.has_value()) s.grad_theta = grad_theta.mutable_data_ptr();
  features_gradient(s, torch_threads());
  return {grad_qkv, grad_theta};
}

Tensor blocks_op(Tensor qkv, std::optional<Tensor> direction, std::optional<Tensor> theta, int64_t heads,
                 int64_t size, double scale, bool causal, bool softmax, std::optional<Tensor> padding,
                 std::optional<Tensor> seed, double p) {
  const Joined x = joined_of(qkv, heads);
  const Rotation r = rotation_of(direction, theta, scale, x, qkv);
  Blocks s = blocks_of(x, r, qkv, size, causal, softmax, padding, seed, p);
  Tensor out = empty({x.length, x.batch, x.heads * x.dim}, qkv.scalar_type());
  s.out = out.mutable_data_ptr();
  blocks(s, torch_threads());
  return out;
}

std::tuple<Tensor, Tensor> blocks_backward_op(Tensor grad_out, Tensor qkv, std::optional<Tensor> direction,
                                              std::optional<Tensor> theta, int64_t heads, int64_t size, double scale,
                                              bool causal, bool softmax, std::optional<Tensor> padding,
                                              std::optional<Tensor> seed, double p) {
  const Joined x = joined_of(qkv, heads);
  const Rotation r = rotation_of(direction, theta, scale, x, qkv);
  BlocksGradient g;
  g.blocks = blocks_of(x, r, qkv, size, causal, softmax, padding, seed, p);
  grad_out = as_contiguous(grad_out);
  require(grad_out.dim() == 3 && grad_out.size(0) == x.length && grad_out.size(1) == x.batch &&
              grad_out.size(2) == x.heads * x.dim && grad_out.scalar_type() == qkv.scalar_type() &&
              on_one_device(grad_out, qkv),
          "grad_out must be like the output");
  g.grad_out = grad_out.const_data_ptr();
  Tensor grad_qkv = torch::stable::empty_like(qkv), grad_theta = new_theta_gradient(theta, qkv);
  g.grad_qkv = grad_qkv.mutable_data_ptr();
  if (theta.has_value()) g.grad_theta = grad_theta.mutable_data_ptr();
  blocks_gradient(g, torch_threads());
  return {grad_qkv, grad_theta};
}

}  // namespace
}  // namespace cla

STABLE_TORCH_LIBRARY_IMPL(causal_linear_attention, CPU, m) {
  CLA_IMPL(residual);
  CLA_IMPL(residual_backward);
  CLA_IMPL(gated);
  CLA_IMPL(gated_backward);
  CLA_IMPL(features);
  CLA_IMPL(features_backward);
  CLA_IMPL(blocks);
  CLA_IMPL(blocks_backward);
}
