// The steps of fused.h: a warp for each row, head or run of numbers.
#include "fused.h"

#include "fused.cuh"

namespace cla::cuda {
namespace {

constexpr int kPositionsOfPart = 16;  // whose gradients by theta a warp adds up

template <class In>
CLA_DEVICE float rounded(float x) {
  In stored;
  store(x, &stored);
  return number(stored);
}

template <class In>
CLA_KERNEL(kThreads, 1)
residual_kernel(CLA_PARAMETER Residual s) {
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const In* const x = static_cast<const In*>(s.x) + row * s.width;
  const In* const y = s.y != nullptr ? static_cast<const In*>(s.y) + row * s.width : nullptr;
  In* const sum = s.sum != nullptr ? static_cast<In*>(s.sum) + row * s.width : nullptr;
  In* const out = s.out != nullptr ? static_cast<In*>(s.out) + row * s.width : nullptr;
  const bool drops = s.dropout.seed != nullptr;
  const uint64_t seed = drops ? static_cast<uint64_t>(*s.dropout.seed) : 0;
  const auto total = [&](int64_t i) {
    if (y == nullptr) return number(x[i]);
    const float kept = drops ? factor_of(s.dropout, seed, row, i) : 1.0f;
    return rounded<In>(number(x[i]) + number(y[i]) * kept);
  };
  // The sum waits in its own place, or that of the norm, so that nothing is drawn twice.
  In* const place = y == nullptr ? nullptr : sum != nullptr ? sum : out;
  float share = 0.0f;
  for_columns(s.width, [&](int64_t i) {
    const float value = total(i);
    if (place != nullptr) store(value, place + i);
    share += value * value;
  });
  sync_warp();
  if (out == nullptr) return;
  const float root = square_root(sum_of_lanes(share) / static_cast<float>(s.width));
  const float scale = root + static_cast<float>(s.eps);
  const In* const from = place != nullptr ? place : x;
  for_columns(s.width, [&](int64_t i) { store(number(from[i]) / scale, out + i); });
  if (lane_index() == 0) static_cast<float*>(s.root)[row] = root;
}

template <class In>
CLA_KERNEL(kThreads, 1)
residual_gradient_kernel(CLA_PARAMETER ResidualGradient s) {
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const int64_t start = row * s.width;
  const In* const before = s.grad_sum != nullptr ? static_cast<const In*>(s.grad_sum) + start : nullptr;
  const In* const grad = s.grad_out != nullptr ? static_cast<const In*>(s.grad_out) + start : nullptr;
  const In* const out = grad != nullptr ? static_cast<const In*>(s.out) + start : nullptr;
  In* const grad_x = static_cast<In*>(s.grad_x) + start;
  In* const grad_y = s.grad_y != nullptr ? static_cast<In*>(s.grad_y) + start : nullptr;
  float along = 0.0f, inverse = 0.0f;
  if (grad != nullptr) {
    const float root = static_cast<const float*>(s.root)[row], scale = root + static_cast<float>(s.eps);
    float share = 0.0f;
    for_columns(s.width, [&](int64_t i) { share += number(out[i]) * number(grad[i]); });
    sync_warp();
    const float mean = sum_of_lanes(share) / static_cast<float>(s.width);
    along = root > 0.0f ? mean * (scale / root) : 0.0f;
    inverse = kNarrow<In> && root == 0.0f ? 0.0f : 1.0f / scale;
  }
  const uint64_t seed = grad_y != nullptr ? static_cast<uint64_t>(*s.dropout.seed) : 0;
  for_columns(s.width, [&](int64_t i) {
    float value = before != nullptr ? number(before[i]) : 0.0f;
    if (grad != nullptr) value += (number(grad[i]) - number(out[i]) * along) * inverse;
    store(value, grad_x + i);
    if (grad_y != nullptr) store(value * factor_of(s.dropout, seed, row, i), grad_y + i);
  });
}

CLA_DEVICE float logistic(float x) { return 1.0f / (1.0f + exponential(-x)); }

template <class In>
CLA_KERNEL(kThreads, 1)
gated_kernel(CLA_PARAMETER Gated s) {
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const In* const gate = static_cast<const In*>(s.inputs) + row * s.stride;
  In* const out = static_cast<In*>(s.out) + row * s.width;
  for_columns(s.width, [&](int64_t i) {
    const float x = number(gate[i]);
    store(x * logistic(x) * number(gate[s.width + i]), out + i);
  });
}

template <class In>
CLA_KERNEL(kThreads, 1)
gated_gradient_kernel(CLA_PARAMETER GatedGradient s) {
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const In* const gate = static_cast<const In*>(s.inputs) + row * s.stride;
  const In* const grad = static_cast<const In*>(s.grad) + row * s.grad_stride;
  In* const grad_gate = static_cast<In*>(s.grad_inputs) + row * s.grad_inputs_stride;
  In* const out = static_cast<In*>(s.out) + row * s.width;
  for_columns(s.width, [&](int64_t i) {
    const float x = number(gate[i]), value = number(gate[s.width + i]), given = number(grad[i]);
    const float share = logistic(x), active = x * share;
    store(active * value, out + i);
    store(given * value * share * (1.0f + x * (1.0f - share)), grad_gate + i);
    store(given * active, grad_gate + s.width + i);
  });
}

// A warp takes the query or key of a position's head.
template <class In>
CLA_KERNEL(kThreads, 1)
features_kernel(CLA_PARAMETER Features s) {
  const Joined& x = s.inputs;
  const int64_t row = row_of_warp(), tokens = x.length * x.batch;
  if (row >= tokens * 2 * x.heads) return;
  const int64_t head = row % x.heads, which = row / x.heads % 2, token = row / x.heads / 2;
  const int64_t b = token % x.batch, position = token / x.batch, dim = x.dim;
  const In* const from = static_cast<const In*>(x.qkv) + ((token * 3 + which) * x.heads + head) * dim;
  In* const to = static_cast<In*>(which == 0 ? s.q : s.k) + ((b * x.heads + head) * x.length + position) * dim;
  turn_row(s.rotation, s.map, from, position, dim, to);
}

// A warp takes a head of kPositionsOfPart positions of a sequence, and adds up theta's gradient of its own.
template <class In>
CLA_KERNEL(kThreads, 1)
features_gradient_kernel(CLA_PARAMETER FeaturesGradient s) {
  const Joined& x = s.inputs;
  const int64_t parts = (x.length + kPositionsOfPart - 1) / kPositionsOfPart, part = row_of_warp();
  if (part >= parts * x.batch * x.heads) return;
  const int64_t head = part % x.heads, b = part / x.heads % x.batch, dim = x.dim;
  const int64_t first = part / x.heads / x.batch * kPositionsOfPart;
  const int64_t last = first + kPositionsOfPart < x.length ? first + kPositionsOfPart : x.length;
  float* const theta = s.grad_theta != nullptr ? static_cast<float*>(s.grad_theta) + part * (dim / 2) : nullptr;
  if (theta != nullptr) {
    for_columns(dim / 2, [&](int64_t pair) { theta[pair] = 0.0f; });
  }
  for (int64_t position = first; position < last; ++position) {
    for (int64_t which = 0; which < 3; ++which) {
      const Array& given = which == 0 ? s.grad_q : which == 1 ? s.grad_k : s.grad_v;
      const In* const grad =
          static_cast<const In*>(given.data) + b * given.batch + head * given.head + position * given.row;
      const int64_t at = (((position * x.batch + b) * 3 + which) * x.heads + head) * dim;
      In* const to = static_cast<In*>(s.grad_qkv) + at;
      if (which == 2) {
        for_columns(dim, [&](int64_t i) { to[i] = grad[i]; });
      } else {
        turn_row_back(s.rotation, s.map, static_cast<const In*>(x.qkv) + at, grad, position, dim, to, theta);
      }
    }
  }
}

}  // namespace

const char* residual(const Residual& s, const Device& device, void* stream) {
  if (s.rows == 0 || s.width == 0) return nullptr;
  return with_type(s.dtype, [&](auto x) {
    return launch_kernel<residual_kernel<decltype(x)>>(s, device, blocks_for(s.rows), 1, kThreads, 0, stream);
  });
}

const char* residual_gradient(const ResidualGradient& s, const Device& device, void* stream) {
  if (s.rows == 0 || s.width == 0) return nullptr;
  return with_type(s.dtype, [&](auto x) {
    return launch_kernel<residual_gradient_kernel<decltype(x)>>(s, device, blocks_for(s.rows), 1, kThreads, 0, stream);
  });
}

const char* gated(const Gated& s, const Device& device, void* stream) {
  if (s.rows == 0 || s.width == 0) return nullptr;
  return with_type(s.dtype, [&](auto x) {
    return launch_kernel<gated_kernel<decltype(x)>>(s, device, blocks_for(s.rows), 1, kThreads, 0, stream);
  });
}

const char* gated_gradient(const GatedGradient& s, const Device& device, void* stream) {
  if (s.rows == 0 || s.width == 0) return nullptr;
  return with_type(s.dtype, [&](auto x) {
    return launch_kernel<gated_gradient_kernel<decltype(x)>>(s, device, blocks_for(s.rows), 1, kThreads, 0, stream);
  });
}

const char* features(const Features& s, const Device& device, void* stream) {
  const int64_t rows = s.inputs.length * s.inputs.batch * s.inputs.heads * 2;
  if (rows == 0 || s.inputs.dim == 0) return nullptr;
  return with_type(s.inputs.dtype, [&](auto x) {
    return launch_kernel<features_kernel<decltype(x)>>(s, device, blocks_for(rows), 1, kThreads, 0, stream);
  });
}

int64_t theta_parts(const Joined& x) {
  return (x.length + kPositionsOfPart - 1) / kPositionsOfPart * x.batch * x.heads;
}

const char* features_gradient(const FeaturesGradient& s, const Device& device, void* stream) {
  const int64_t parts = theta_parts(s.inputs);
  if (parts == 0 || s.inputs.dim == 0) return nullptr;
  return with_type(s.inputs.dtype, [&](auto x) {
    return launch_kernel<features_gradient_kernel<decltype(x)>>(s, device, blocks_for(parts), 1, kThreads, 0, stream);
  });
}

}  // namespace cla::cuda
