// What the steps of fused.h have in common: a warp for each row, dropout, LRPE.
#pragma once

#include "../fused.h"
#include "mma.cuh"

namespace cla::cuda {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

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

// One row's query or key, mapped and turned by a warp: a pair of channels a lane.
template <class In, class To>
CLA_DEVICE void turn_row(const cla::Rotation& r, Map map, const In* x, int64_t position, int64_t dim, To* to) {
  const bool turns = r.direction != nullptr;
  const float along = turns ? along_of(r, map, x, dim) : 0.0f;
  for_columns((dim + 1) / 2, [&](int64_t pair) {
    Pair y = reflected(r, map, x, along, pair, dim);
    if (turns) y = turned(y, rotation_at(r, position, pair, dim));
    store(y.first, to + 2 * pair);
    if (2 * pair + 1 < dim) store(y.second, to + 2 * pair + 1);
  });
}

// The gradient of one row's query or key before `turn_row`, and what theta's pairs of this lane gain by it.
template <class In, class Grad>
CLA_DEVICE void turn_row_back(const cla::Rotation& r, Map map, const In* x, const Grad* grad, int64_t position,
                              int64_t dim, In* to, float* theta) {
  const float scale = static_cast<float>(r.scale);
  if (r.direction == nullptr) {
    for_columns(dim, [&](int64_t i) { store(scale * number(grad[i]) * slope(map, number(x[i])), to + i); });
    return;
  }
  const float along = along_of(r, map, x, dim);
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
      const Pair y = reflected(r, map, x, along, pair, dim);
      theta[pair] += static_cast<float>(position) * (y.first * g.second - y.second * g.first);
    }
  });
  sync_warp();
  const float part = 2.0f * sum_of_lanes(share);
  for_columns((dim + 1) / 2, [&](int64_t pair) {
    const Pair g = back(pair);
    const int64_t i = 2 * pair;
    store(scale * (g.first - part * direction_at(r, i)) * slope(map, number(x[i])), to + i);
    if (i + 1 >= dim) return;
    store(scale * (g.second - part * direction_at(r, i + 1)) * slope(map, number(x[i + 1])), to + i + 1);
  });
}

constexpr int64_t blocks_for(int64_t warps) { return (warps + kWarps - 1) / kWarps; }

}  // namespace cla::cuda
