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

}  // namespace cla
