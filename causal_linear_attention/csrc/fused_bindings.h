// The checks that the CPU's and the CUDA bindings of fused.h share.
#pragma once

#include <algorithm>
#include <cmath>

#include "bindings.h"
#include "fused.h"

namespace cla {

inline Dropout dropout_of(const std::optional<Tensor>& seed, double p, const Tensor& x) {
  Dropout d;
  if (!seed.has_value()) return d;
  require(seed->scalar_type() == ScalarType::Long && seed->numel() == 1 && on_one_device(*seed, x),
          "seed must be one int64 number on the device of x");
  require(p >= 0 && p < 1, "p must be at least 0 and less than 1");
  d.seed = static_cast<const int64_t*>(seed->const_data_ptr());
  d.threshold = static_cast<uint32_t>(std::min(std::round(p * 4294967296.0), 4294967295.0));
  d.scale = 1 / (1 - p);
  return d;
}

inline int64_t last_size(const Tensor& x) {
  require(x.dim() > 0, "the rows must have a last dimension");
  return x.size(x.dim() - 1);
}

inline int64_t rows_of(const Tensor& x) { return x.numel() / std::max<int64_t>(last_size(x), 1); }

inline void check_like(const Tensor& x, const Tensor& y, const char* message) {
  bool alike = x.dim() == y.dim() && x.scalar_type() == y.scalar_type() && on_one_device(x, y);
  for (int64_t i = 0; alike && i < x.dim(); ++i) alike = x.size(i) == y.size(i);
  require(alike, message);
}

inline Map map_of(int64_t map) {
  require(map >= 0 && map <= 2, "map must be 0, 1 or 2");
  return static_cast<Map>(map);
}

// Makes qkv contiguous.
inline Joined joined_of(Tensor& qkv, int64_t heads) {
  qkv = as_contiguous(qkv);
  require(qkv.dim() == 3 && heads > 0 && qkv.size(2) % (3 * heads) == 0,
          "qkv must be (length, batch, 3 D), D a multiple of heads");
  Joined x;
  x.length = qkv.size(0);
  x.batch = qkv.size(1);
  x.heads = heads;
  x.dim = qkv.size(2) / 3 / heads;
  x.dtype = dtype_of(qkv);
  x.qkv = qkv.const_data_ptr();
  return x;
}

// Makes its tensors contiguous.
inline Rotation rotation_of(std::optional<Tensor>& direction, std::optional<Tensor>& theta, double scale,
                            const Joined& x, const Tensor& qkv) {
  Rotation r;
  r.scale = scale;
  require(direction.has_value() == theta.has_value(), "direction and theta go together");
  if (!direction.has_value()) return r;
  direction = as_contiguous(*direction);
  theta = as_contiguous(*theta);
  require(direction->numel() == x.dim && theta->numel() == x.dim / 2 && on_one_device(*direction, qkv) &&
              on_one_device(*theta, qkv),
          "direction must have D numbers and theta D / 2, on the device of qkv");
  r.direction = direction->const_data_ptr();
  r.theta = theta->const_data_ptr();
  r.direction_dtype = dtype_of(*direction);
  r.theta_dtype = dtype_of(*theta);
  return r;
}

// The gradient of theta is float64 for a float64 theta, else float32.
inline ScalarType type_of_gradient(const Tensor& theta) { return accumulation_type(theta); }

// Makes padding contiguous.
inline Blocks blocks_of(const Joined& x, const Rotation& r, const Tensor& qkv, int64_t size, bool causal,
                        bool softmax, std::optional<Tensor>& padding, const std::optional<Tensor>& seed, double p) {
  Blocks s;
  s.inputs = x;
  s.rotation = r;
  require(size > 0, "blocks must have a size");
  s.size = size;
  s.causal = causal;
  s.softmax = softmax;
  if (padding.has_value()) {
    padding = as_contiguous(*padding);
    require(padding->scalar_type() == ScalarType::Bool && padding->dim() == 2 && padding->size(0) == x.batch &&
                padding->size(1) == x.length && on_one_device(*padding, qkv),
            "padding must be bool (batch, length)");
    s.padding = static_cast<const bool*>(padding->const_data_ptr());
  }
  s.dropout = dropout_of(seed, p, qkv);
  return s;
}

// Rows whose numbers lie side by side, and that do not overlap.
inline Tensor with_apart_rows(const Tensor& x) {
  return x.dim() == 2 && x.stride(0) < x.size(1) ? as_contiguous(x) : with_dense_rows(x);
}

inline int64_t gated_width(const Tensor& inputs) {
  require(inputs.dim() == 2 && inputs.size(1) % 2 == 0, "inputs must be (rows, 2 width)");
  return inputs.size(1) / 2;
}

// The operators. `On` is a device: On::empty makes a tensor, On::theta_gradient that of theta's gradient in
// On::theta_parts rows, On::run computes a step, and On::Guard makes the tensor's device the current one.
template <class On>
struct FusedOperators {
  static std::tuple<Tensor, Tensor, Tensor> residual(Tensor x, std::optional<Tensor> y, std::optional<Tensor> seed,
                                                 double p, double eps, bool norm, bool keep) {
    const typename On::Guard guard(x);
    x = as_contiguous(x);
    Residual s;
    s.width = last_size(x);
    s.rows = rows_of(x);
    s.dtype = dtype_of(x);
    s.eps = eps;
    s.x = x.const_data_ptr();
    Tensor sum = On::empty(x, {0}, x.scalar_type()), out = On::empty(x, {0}, x.scalar_type()), root = On::empty(x, {norm ? s.rows : 0}, accumulation_type(x));
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
    On::run(s, x);
    return {sum, out, root};
  }

  static std::tuple<Tensor, Tensor> residual_backward(std::optional<Tensor> grad_sum, std::optional<Tensor> grad_out,
                                                  Tensor out, Tensor root, std::optional<Tensor> seed, double p,
                                                  double eps) {
    require(grad_sum.has_value() || grad_out.has_value(), "a gradient must be given");
    const Tensor like = grad_out.has_value() ? *grad_out : *grad_sum;
    const typename On::Guard guard(like);
    ResidualGradient s;
    s.width = last_size(like);
    s.rows = rows_of(like);
    s.dtype = dtype_of(like);
    s.eps = eps;
    if (grad_out.has_value()) {
      check_like(*grad_out, out, "grad_out must be like out");
      require(root.numel() == s.rows && root.scalar_type() == accumulation_type(out) && root.is_contiguous() &&
                  on_one_device(root, out),
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
    Tensor grad_y = seed.has_value() ? torch::stable::new_empty(like, like.sizes()) : On::empty(like, {0}, like.scalar_type());
    s.grad_x = grad_x.mutable_data_ptr();
    if (seed.has_value()) s.grad_y = grad_y.mutable_data_ptr();
    On::run(s, like);
    return {grad_x, grad_y};
  }

  static Tensor gated(Tensor inputs) {
    const typename On::Guard guard(inputs);
    Gated s;
    s.width = gated_width(inputs);
    inputs = with_apart_rows(inputs);
    s.stride = inputs.stride(0);
    s.rows = inputs.size(0);
    s.dtype = dtype_of(inputs);
    Tensor out = On::empty(inputs, {s.rows, s.width}, inputs.scalar_type());
    s.inputs = inputs.const_data_ptr();
    s.out = out.mutable_data_ptr();
    On::run(s, inputs);
    return out;
  }

  static std::tuple<Tensor, Tensor> gated_backward(Tensor grad, Tensor inputs) {
    const typename On::Guard guard(inputs);
    GatedGradient s;
    s.width = gated_width(inputs);
    s.rows = inputs.size(0);
    s.dtype = dtype_of(inputs);
    require(grad.dim() == 2 && grad.size(0) == s.rows && grad.size(1) == s.width &&
                grad.scalar_type() == inputs.scalar_type() && on_one_device(grad, inputs),
            "grad must be like the output");
    inputs = with_apart_rows(inputs);
    grad = with_apart_rows(grad);
    s.stride = inputs.stride(0);
    s.grad_stride = grad.stride(0);
    s.grad_inputs_stride = (2 * s.width + kAlignedRows - 1) / kAlignedRows * kAlignedRows;
    Tensor out = On::empty(inputs, {s.rows, s.width}, inputs.scalar_type());
    Tensor grad_inputs = On::empty(inputs, {s.rows, s.grad_inputs_stride}, inputs.scalar_type());
    s.inputs = inputs.const_data_ptr();
    s.grad = grad.const_data_ptr();
    s.out = out.mutable_data_ptr();
    s.grad_inputs = grad_inputs.mutable_data_ptr();
    On::run(s, inputs);
    if (s.grad_inputs_stride > 2 * s.width) grad_inputs = torch::stable::narrow(grad_inputs, 1, 0, 2 * s.width);
    return {grad_inputs, out};
  }

  static std::tuple<Tensor, Tensor> features(Tensor qkv, std::optional<Tensor> direction, std::optional<Tensor> theta,
                                         int64_t heads, int64_t map, double scale) {
    const typename On::Guard guard(qkv);
    Features s;
    s.inputs = joined_of(qkv, heads);
    s.map = map_of(map);
    s.rotation = rotation_of(direction, theta, scale, s.inputs, qkv);
    const Joined& x = s.inputs;
    Tensor q = On::empty(qkv, {x.batch, x.heads, x.length, x.dim}, qkv.scalar_type());
    Tensor k = On::empty(qkv, {x.batch, x.heads, x.length, x.dim}, qkv.scalar_type());
    s.q = q.mutable_data_ptr();
    s.k = k.mutable_data_ptr();
    On::run(s, qkv);
    return {q, k};
  }

  static std::tuple<Tensor, Tensor> features_backward(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor qkv,
                                                  std::optional<Tensor> direction, std::optional<Tensor> theta,
                                                  int64_t heads, int64_t map, double scale) {
    const typename On::Guard guard(qkv);
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
    Tensor grad_qkv = torch::stable::empty_like(qkv), grad_theta = On::theta_gradient(theta, qkv, On::theta_parts(s));
    s.grad_qkv = grad_qkv.mutable_data_ptr();
    if (theta.has_value()) s.grad_theta = grad_theta.mutable_data_ptr();
    On::run(s, qkv);
    return {grad_qkv, grad_theta};
  }

  static Tensor blocks(Tensor qkv, std::optional<Tensor> direction, std::optional<Tensor> theta, int64_t heads,
                       int64_t size, double scale, bool causal, bool softmax, std::optional<Tensor> padding,
                       std::optional<Tensor> seed, double p) {
    const typename On::Guard guard(qkv);
    const Joined x = joined_of(qkv, heads);
    const Rotation r = rotation_of(direction, theta, scale, x, qkv);
    Blocks s = blocks_of(x, r, qkv, size, causal, softmax, padding, seed, p);
    Tensor out = On::empty(qkv, {x.length, x.batch, x.heads * x.dim}, qkv.scalar_type());
    s.out = out.mutable_data_ptr();
    On::run(s, qkv);
    return out;
  }

  static std::tuple<Tensor, Tensor> blocks_backward(Tensor grad_out, Tensor qkv, std::optional<Tensor> direction,
                                                std::optional<Tensor> theta, int64_t heads, int64_t size, double scale,
                                                bool causal, bool softmax, std::optional<Tensor> padding,
                                                std::optional<Tensor> seed, double p) {
    const typename On::Guard guard(qkv);
    const Joined x = joined_of(qkv, heads);
    const Rotation r = rotation_of(direction, theta, scale, x, qkv);
    BlocksGradient s;
    s.blocks = blocks_of(x, r, qkv, size, causal, softmax, padding, seed, p);
    grad_out = as_contiguous(grad_out);
    require(grad_out.dim() == 3 && grad_out.size(0) == x.length && grad_out.size(1) == x.batch &&
                grad_out.size(2) == x.heads * x.dim && grad_out.scalar_type() == qkv.scalar_type() &&
                on_one_device(grad_out, qkv),
            "grad_out must be like the output");
    s.grad_out = grad_out.const_data_ptr();
    Tensor grad_qkv = torch::stable::empty_like(qkv), grad_theta = On::theta_gradient(theta, qkv, On::theta_parts(s));
    s.grad_qkv = grad_qkv.mutable_data_ptr();
    if (theta.has_value()) s.grad_theta = grad_theta.mutable_data_ptr();
    On::run(s, qkv);
    return {grad_qkv, grad_theta};
  }
};

#define CLA_IMPL_FUSED(On, name) m.impl(#name, TORCH_BOX(&cla::Explained<&cla::FusedOperators<On>::name>::run))

}  // namespace cla
