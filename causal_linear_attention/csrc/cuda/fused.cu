// The steps of fused.h: a warp for each row, head or run of numbers.
#include "fused.h"

#include "mma.cuh"

namespace cla::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kPositionsOfPart = 16;  // whose gradients by theta a warp adds up

CLA_DEVICE int64_t row_of_warp() { return int64_t{block_index()} * kWarps + warp_index(); }

// visit(the column) for this lane's columns of a row.
template <class Visit>
CLA_DEVICE void for_columns(int64_t width, const Visit& visit) {
#pragma unroll 4
  for (int64_t column = lane_index(); column < width; column += 32) visit(column);
}

// The upper half of the product of two 32-bit numbers.
CLA_DEVICE uint32_t upper(uint32_t x, uint32_t y) {
  return static_cast<uint32_t>((static_cast<uint64_t>(x) * y) >> 32);
}

// What the number in this row and column is multiplied by.
CLA_DEVICE float factor_of(const Dropout& d, uint64_t seed, int64_t row, int64_t column) {
  uint32_t x[4] = {static_cast<uint32_t>(column / 64 * 16 + column % 16), static_cast<uint32_t>(row),
                   static_cast<uint32_t>(static_cast<uint64_t>(row) >> 32), 0u};
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint32_t first = upper(kPhiloxFactor1, x[2]) ^ x[1] ^ key0;
    const uint32_t third = upper(kPhiloxFactor0, x[0]) ^ x[3] ^ key1;
    x[1] = kPhiloxFactor1 * x[2];
    x[3] = kPhiloxFactor0 * x[0];
    x[0] = first;
    x[2] = third;
    key0 += kPhiloxKey0;
    key1 += kPhiloxKey1;
  }
  const int which = static_cast<int>(column / 16 % 4);
  const uint32_t word = which == 0 ? x[0] : which == 1 ? x[1] : which == 2 ? x[2] : x[3];
  return word >= d.threshold ? static_cast<float>(d.scale) : 0.0f;
}

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

// A parameter of any type.
CLA_DEVICE double value_at(const void* data, Dtype dtype, int64_t i) {
  if (dtype == Dtype::f64) return static_cast<const double*>(data)[i];
  if (dtype == Dtype::f32) return static_cast<double>(static_cast<const float*>(data)[i]);
  if (dtype == Dtype::bf16) return static_cast<double>(number(static_cast<const Bf16*>(data)[i]));
  return static_cast<double>(number(static_cast<const Half*>(data)[i]));
}
CLA_DEVICE float direction_at(const cla::Rotation& r, int64_t i) {
  return static_cast<float>(value_at(r.direction, r.direction_dtype, i));
}

CLA_DEVICE float mapped(Map map, float x) {
  if (map == Map::none) return x;
  if (map == Map::elu) return x > 0.0f ? x : exponential_minus_one(x);
  return x > 0.0f ? x + 1.0f : exponential(x);
}
CLA_DEVICE float slope(Map map, float x) { return map == Map::none || x > 0.0f ? 1.0f : exponential(x); }

// A pair of channels, the second 0 behind an odd last one.
struct Pair {
  float first, second;
};

CLA_DEVICE Pair turned(Pair y, Rotation by) {
  return {y.first * by.cosine - y.second * by.sine, y.first * by.sine + y.second * by.cosine};
}
CLA_DEVICE Pair turned_back(Pair y, Rotation by) {
  return {y.first * by.cosine + y.second * by.sine, y.second * by.cosine - y.first * by.sine};
}
CLA_DEVICE Rotation rotation_at(const cla::Rotation& r, int64_t position, int64_t pair, int64_t dim) {
  if (2 * pair + 1 >= dim) return {1.0f, 0.0f};
  return rotation(static_cast<double>(position) * value_at(r.theta, r.theta_dtype, pair));
}

// Twice the part of a mapped row along the direction, in all lanes of the warp.
template <class In>
CLA_DEVICE float along_of(const cla::Rotation& r, Map map, const In* x, int64_t dim) {
  float share = 0.0f;
  for_columns(dim, [&](int64_t i) { share += mapped(map, number(x[i])) * direction_at(r, i); });
  sync_warp();
  return 2.0f * sum_of_lanes(share);
}

// Channels 2 pair and 2 pair + 1 of a row, mapped, reflected and scaled, not turned yet.
template <class In>
CLA_DEVICE Pair reflected(const cla::Rotation& r, Map map, const In* x, float along, int64_t pair, int64_t dim) {
  const int64_t i = 2 * pair;
  const float scale = static_cast<float>(r.scale);
  const bool reflects = r.direction != nullptr, both = i + 1 < dim;
  Pair y{mapped(map, number(x[i])), both ? mapped(map, number(x[i + 1])) : 0.0f};
  if (reflects) {
    y.first -= along * direction_at(r, i);
    if (both) y.second -= along * direction_at(r, i + 1);
  }
  return {scale * y.first, scale * y.second};
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
  const bool turns = s.rotation.direction != nullptr;
  const float along = turns ? along_of(s.rotation, s.map, from, dim) : 0.0f;
  for_columns((dim + 1) / 2, [&](int64_t pair) {
    Pair y = reflected(s.rotation, s.map, from, along, pair, dim);
    if (turns) y = turned(y, rotation_at(s.rotation, position, pair, dim));
    store(y.first, to + 2 * pair);
    if (2 * pair + 1 < dim) store(y.second, to + 2 * pair + 1);
  });
}

// The gradient of one row's query or key, and what theta's pair 2 of this lane gains by it.
template <class In>
CLA_DEVICE void features_row_back(const FeaturesGradient& s, const In* x, const In* grad, int64_t position,
                                  int64_t dim, In* to, float* theta) {
  const cla::Rotation& r = s.rotation;
  const float scale = static_cast<float>(r.scale);
  if (r.direction == nullptr) {
    for_columns(dim, [&](int64_t i) { store(scale * number(grad[i]) * slope(s.map, number(x[i])), to + i); });
    return;
  }
  const float along = along_of(r, s.map, x, dim);
  const auto back = [&](int64_t pair) {
    const Pair g{number(grad[2 * pair]), 2 * pair + 1 < dim ? number(grad[2 * pair + 1]) : 0.0f};
    return turned_back(g, rotation_at(r, position, pair, dim));
  };
  float share = 0.0f;
  for_columns((dim + 1) / 2, [&](int64_t pair) {
    const Pair g = back(pair);
    share += g.first * direction_at(r, 2 * pair);
    if (2 * pair + 1 >= dim) return;
    share += g.second * direction_at(r, 2 * pair + 1);
    if (theta != nullptr) {  // turned or not, a pair and its gradient have the same product across
      const Pair y = reflected(r, s.map, x, along, pair, dim);
      theta[pair] += static_cast<float>(position) * (y.first * g.second - y.second * g.first);
    }
  });
  sync_warp();
  const float part = 2.0f * sum_of_lanes(share);
  for_columns((dim + 1) / 2, [&](int64_t pair) {
    const Pair g = back(pair);
    const int64_t i = 2 * pair;
    store(scale * (g.first - part * direction_at(r, i)) * slope(s.map, number(x[i])), to + i);
    if (i + 1 >= dim) return;
    store(scale * (g.second - part * direction_at(r, i + 1)) * slope(s.map, number(x[i + 1])), to + i + 1);
  });
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
        features_row_back(s, static_cast<const In*>(x.qkv) + at, grad, position, dim, to, theta);
      }
    }
  }
}

constexpr int64_t blocks_for(int64_t warps) { return (warps + kWarps - 1) / kWarps; }

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
