#include "decoding.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "fused.h"
#include "threads.h"

namespace cla {
namespace {

// Sums in lanes of their own, which the compiler puts into vectors.
float dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kLanes = 16;
  float sums[kLanes] = {}, rest = 0;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < count; ++i) rest += a[i] * b[i];
  for (int64_t lane = 0; lane < kLanes; ++lane) rest += sums[lane];
  return rest;
}

// cos and sin of a position's angles, side by side.
void rotation(const Turn& turn, int64_t row, int64_t pairs, float* turns) {
  for (int64_t j = 0; j < pairs; ++j) {
    const double angle = static_cast<double>(turn.positions[row]) * turn.theta[j];
    turns[2 * j] = static_cast<float>(std::cos(angle));
    turns[2 * j + 1] = static_cast<float>(std::sin(angle));
  }
}

// x -> y by the reflection and the rotation; both of `dim` numbers.
void turned(const Turn& turn, const float* turns, int64_t dim, const float* x, float* y) {
  const float along = 2 * dot(x, turn.direction, dim);
  for (int64_t i = 0; i < dim; ++i) y[i] = turn.scale * (x[i] - along * turn.direction[i]);
  for (int64_t i = 0; i + 1 < dim; i += 2) {
    const float re = y[i], im = y[i + 1];
    y[i] = re * turns[i] - im * turns[i + 1];
    y[i + 1] = re * turns[i + 1] + im * turns[i];
  }
}

void feature_map(const float* x, int64_t count, bool one_plus, float* y) {
  for (int64_t i = 0; i < count; ++i) {
    if (one_plus) {
      y[i] = x[i] > 0 ? x[i] + 1 : std::exp(x[i]);
    } else {
      y[i] = x[i] > 0 ? x[i] : std::expm1(x[i]);
    }
  }
}

// body(task, scratch) for every task, each worth `operations`; scratch has `size` numbers.
template <class Body>
void for_each(int64_t count, int64_t operations, int64_t size, const Threads& threads, const Body& body) {
  Threads used = threads;
  used.count = useful_threads(threads, count * operations);
  for_tasks(count, used, [&](auto next) {
    const Buffer<float> scratch = allocate<float>(size);
    for (int64_t task = next(); task >= 0; task = next()) body(task, scratch.get());
  });
}

void attend_to_block(const BlockStep& s, int64_t place, const float* q, const float* keys,
                     const float* values, float* weights, float* out) {
  float highest = -INFINITY, total = 0;
  for (int64_t j = 0; j <= place; ++j) {
    weights[j] = dot(q, keys + j * s.dim, s.dim);
    highest = std::max(highest, weights[j]);
  }
  for (int64_t j = 0; j <= place; ++j) {
    weights[j] = s.softmax ? std::exp(weights[j] - highest) : std::max(weights[j], 0.0f);
    total += weights[j];
  }
  std::fill(out, out + s.dim, 0.0f);
  for (int64_t j = 0; j <= place; ++j) {
    const float weight = s.softmax ? weights[j] / total : weights[j];
    for (int64_t i = 0; i < s.dim; ++i) out[i] += weight * values[j * s.dim + i];
  }
}

// All columns, spread over threads.
void multiply(const Product& p, const Threads& threads) {
  constexpr int64_t kColumns = 64;  // of a piece
  for_each((p.width + kColumns - 1) / kColumns, 2 * kColumns * p.rows * p.depth, 0, threads, [&](int64_t task, float*) {
    current_kernels().product(p, task * kColumns, std::min(p.width, (task + 1) * kColumns));
  });
}

}  // namespace

void norm_step(const NormStep& s, const Threads& threads) {
  const int64_t row = s.heads * s.dim;
  const Buffer<float> q = allocate<float>(s.batch * row), k = allocate<float>(s.batch * row);
  for_each(s.batch, 20 * row, 2 * s.dim, threads, [&](int64_t b, float* scratch) {
    float *turns = scratch, *mapped = scratch + s.dim;
    rotation(s.turn, b, s.dim / 2, turns);
    for (int64_t start = b * row; start < (b + 1) * row; start += s.dim) {
      feature_map(s.q + start, s.dim, s.one_plus, mapped);
      turned(s.turn, turns, s.dim, mapped, q.get() + start);
      feature_map(s.k + start, s.dim, s.one_plus, mapped);
      turned(s.turn, turns, s.dim, mapped, k.get() + start);
    }
  });
  Problem p;
  p.batch = s.batch;
  p.heads = s.heads;
  p.rows = 1;
  p.depth = p.width = s.dim;
  p.q.data = q.get();
  p.k.data = k.get();
  p.v.data = const_cast<float*>(s.v);
  p.state = s.state;
  step(p, s.out, s.state_out, threads);
}

void block_step(const BlockStep& s, const Threads& threads) {
  const int64_t row = s.heads * s.dim, block = s.size * s.dim;
  for_each(s.batch, 4 * s.heads * block, 2 * s.dim + s.size, threads, [&](int64_t b, float* scratch) {
    float *turns = scratch, *q = turns + s.dim, *weights = q + s.dim;
    const int64_t place = s.turn.positions[b];
    rotation(s.turn, b, s.dim / 2, turns);
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t start = b * row + head * s.dim;
      float* const keys = s.keys + (b * s.heads + head) * block;
      float* const values = s.values + (b * s.heads + head) * block;
      turned(s.turn, turns, s.dim, s.q + start, q);
      turned(s.turn, turns, s.dim, s.k + start, keys + place * s.dim);
      std::copy(s.v + start, s.v + start + s.dim, values + place * s.dim);
      attend_to_block(s, place, q, keys, values, weights, s.out + start);
    }
  });
}

void rms_norm(const float* x, int64_t rows, int64_t width, double eps, float* out, const Threads& threads) {
  constexpr int64_t kRows = 64;
  const float share = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  for_each((rows + kRows - 1) / kRows, 4 * kRows * width, 0, threads, [&](int64_t task, float*) {
    for (int64_t i = task * kRows; i < std::min(rows, (task + 1) * kRows); ++i) {
      const float* const from = x + i * width;
      const float root = std::sqrt(dot(from, from, width)) * share + static_cast<float>(eps);
      for (int64_t j = 0; j < width; ++j) out[i * width + j] = from[j] / root;
    }
  });
}

void linear_step(const LinearStep& s, const Threads& threads) {
  Product p = s.product;
  const Buffer<float> normed = allocate<float>(s.normed ? p.rows * p.depth : 0);
  if (s.normed) {
    rms_norm(p.x, p.rows, p.depth, s.eps, normed.get(), threads);
    p.x = normed.get();
  }
  multiply(p, threads);
}

void gated_step(const GatedStep& s, const Threads& threads) {
  const Buffer<float> inputs = allocate<float>(s.rows * 2 * s.inner), products = allocate<float>(s.rows * s.inner);
  LinearStep first;
  first.product = {s.rows, s.width, 2 * s.inner, s.x, s.weight, s.bias, nullptr, inputs.get()};
  first.normed = true;
  first.eps = s.eps;
  linear_step(first, threads);
  gated({s.rows, s.inner, Dtype::f32, inputs.get(), 2 * s.inner, products.get()}, threads);
  multiply({s.rows, s.inner, s.width, products.get(), s.out_weight, s.out_bias, s.x, s.out}, threads);
}

}  // namespace cla
