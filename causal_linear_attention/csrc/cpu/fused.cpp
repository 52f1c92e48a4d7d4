// Spreads the steps of fused.h over threads.
#include "fused.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "threads.h"

namespace cla {
namespace {

template <class T>
const FusedKernels<T>& kernels_of() {
  if constexpr (sizeof(T) == 8) {
    return *current_kernels().fused_f64;
  } else {
    return *current_kernels().fused_f32;
  }
}

// body(accumulation type's zero)
template <class Body>
void with_type(Dtype dtype, const Body& body) {
  if (dtype == Dtype::f64) {
    body(double{});
  } else {
    body(float{});
  }
}

// body(first, last, scratch, task) for pieces of [0, count), each worth `operations` per entry. Pieces do not depend
// on the number of threads.
template <class T, class Body>
void for_pieces(int64_t count, int64_t piece, int64_t operations, int64_t size, const Threads& threads,
                const Body& body) {
  Threads used = threads;
  used.count = useful_threads(threads, count * operations);
  for_tasks((count + piece - 1) / piece, used, [&](auto next) {
    const Buffer<T> scratch = allocate<T>(size);
    for (int64_t task = next(); task >= 0; task = next()) {
      body(task * piece, std::min(count, (task + 1) * piece), scratch.get(), task);
    }
  });
}

int64_t piece_of_rows(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1)); }

constexpr int64_t kPositions = 16;  // of a piece

double number(const void* data, Dtype dtype, int64_t i) {
  if (dtype == Dtype::f64) return static_cast<const double*>(data)[i];
  if (dtype == Dtype::f32) return static_cast<const float*>(data)[i];
  const uint32_t bits = static_cast<const uint16_t*>(data)[i];
  if (dtype == Dtype::bf16) {
    const uint32_t wide = bits << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
  const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
  if (exponent == 31) return fraction != 0 ? NAN : bits >> 15 ? -INFINITY : INFINITY;
  const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  return bits >> 15 ? -size : size;
}

// The memory of a Turns.
template <class T>
struct Table {
  Buffer<T> direction, table;
  Turns<T> turns;

  Table(const Rotation& r, int64_t dim, int64_t rows, const Threads& threads) {
    const int64_t room = round_up(dim, kMaxLanes), pairs = dim / 2;
    turns.dim = dim;
    turns.room = room;
    turns.scale = static_cast<T>(r.scale);
    if (r.direction == nullptr) return;
    direction = allocate<T>(room);
    table = allocate<T>(rows * 2 * room);
    for (int64_t i = 0; i < room; ++i) {
      direction[i] = i < dim ? static_cast<T>(number(r.direction, r.direction_dtype, i)) : T(0);
    }
    turns.direction = direction.get();
    turns.table = table.get();
    std::vector<double> theta(pairs);
    for (int64_t j = 0; j < pairs; ++j) theta[j] = number(r.theta, r.theta_dtype, j);
    // A position is turned on from the one before; every 32nd is computed afresh, so that errors do not add up.
    constexpr int64_t kAfresh = 32;
    for_pieces<double>(rows, kAfresh, 40 * dim, 4 * (pairs + 1), threads,
                       [&](int64_t first, int64_t last, double* at, int64_t) {
      double *const cos = at, *const sin = cos + pairs, *const by_cos = sin + pairs, *const by_sin = by_cos + pairs;
      for (int64_t j = 0; j < pairs; ++j) {
        cos[j] = std::cos(static_cast<double>(first) * theta[j]);
        sin[j] = std::sin(static_cast<double>(first) * theta[j]);
        by_cos[j] = std::cos(theta[j]);
        by_sin[j] = std::sin(theta[j]);
      }
      for (int64_t row = first; row < last; ++row) {
        T *const cosines = table.get() + row * 2 * room, *const sines = cosines + room;
        for (int64_t i = 2 * pairs; i < room; ++i) {
          cosines[i] = 1;
          sines[i] = 0;
        }
        for (int64_t j = 0; j < pairs; ++j) {
          cosines[2 * j] = cosines[2 * j + 1] = static_cast<T>(cos[j]);
          sines[2 * j] = static_cast<T>(-sin[j]);
          sines[2 * j + 1] = static_cast<T>(sin[j]);
          const double next = cos[j] * by_cos[j] - sin[j] * by_sin[j];
          sin[j] = cos[j] * by_sin[j] + sin[j] * by_cos[j];
          cos[j] = next;
        }
      }
    });
  }
};

// Theta's gradient, a row for each task, added up in their order.
struct ThetaGradient {
  int64_t pairs;
  std::vector<double> parts;

  ThetaGradient(bool wanted, int64_t tasks, int64_t dim) : pairs(dim / 2), parts(wanted ? tasks * pairs : 0) {}
  double* of(int64_t task) { return parts.empty() ? nullptr : parts.data() + task * pairs; }
  void write(void* to, Dtype dtype) const {
    if (to == nullptr) return;
    for (int64_t j = 0; j < pairs; ++j) {
      double total = 0;
      for (size_t at = j; at < parts.size(); at += pairs) total += parts[at];
      if (dtype == Dtype::f64) {
        static_cast<double*>(to)[j] = total;
      } else {
        static_cast<float*>(to)[j] = static_cast<float>(total);
      }
    }
  }
};

int64_t block_scratch(int64_t size, int64_t dim) {
  const int64_t room = round_up(size, kMaxLanes), columns = round_up(dim, kMaxLanes);
  return 9 * room * columns + 3 * room * room + round_up(room, 64) + 3 * columns;
}

// body(block, b, head, scratch, task) for all of them.
template <class T, class Body>
void for_blocks(const Blocks& s, const Threads& threads, const Body& body) {
  const Joined& x = s.inputs;
  const int64_t size = std::min(s.size, x.length), count = (x.length + size - 1) / size * x.batch * x.heads;
  for_pieces<T>(count, 1, 10 * size * size * x.dim, block_scratch(size, x.dim), threads,
                [&](int64_t task, int64_t, T* scratch, int64_t) {
    body(task / x.heads / x.batch, task / x.heads % x.batch, task % x.heads, scratch, task);
  });
}

int64_t blocks_of(const Blocks& s) {
  const int64_t size = std::min(s.size, s.inputs.length);
  return (s.inputs.length + size - 1) / size * s.inputs.batch * s.inputs.heads;
}

}  // namespace

void residual(const Residual& s, const Threads& threads) {
  if (s.width == 0) return;
  with_type(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s.rows, piece_of_rows(s.width), 10 * s.width, 4 * round_up(s.width, 64), threads,
                  [&](int64_t first, int64_t last, T* scratch, int64_t) {
      kernels_of<T>().residual(s, first, last, scratch);
    });
  });
}

void residual_gradient(const ResidualGradient& s, const Threads& threads) {
  if (s.width == 0) return;
  with_type(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s.rows, piece_of_rows(s.width), 10 * s.width, 4 * round_up(s.width, 64), threads,
                  [&](int64_t first, int64_t last, T* scratch, int64_t) {
      kernels_of<T>().residual_gradient(s, first, last, scratch);
    });
  });
}

void gated(const Gated& s, const Threads& threads) {
  with_type(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s.rows, piece_of_rows(s.width), 20 * s.width, 3 * s.width, threads,
                  [&](int64_t first, int64_t last, T* scratch, int64_t) {
      kernels_of<T>().gated(s, first, last, scratch);
    });
  });
}

void gated_gradient(const GatedGradient& s, const Threads& threads) {
  with_type(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_pieces<T>(s.rows, piece_of_rows(s.width), 30 * s.width, 6 * s.width, threads,
                  [&](int64_t first, int64_t last, T* scratch, int64_t) {
      kernels_of<T>().gated_gradient(s, first, last, scratch);
    });
  });
}

void features(const Features& s, const Threads& threads) {
  const Joined& x = s.inputs;
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Table<T> table(s.rotation, x.dim, x.length, threads);
    for_pieces<T>(x.length, kPositions, 40 * x.batch * x.heads * x.dim, 3 * table.turns.room, threads,
                  [&](int64_t first, int64_t last, T* scratch, int64_t) {
      kernels_of<T>().features(s, table.turns, first, last, scratch);
    });
  });
}

void features_gradient(const FeaturesGradient& s, const Threads& threads) {
  const Joined& x = s.inputs;
  with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Table<T> table(s.rotation, x.dim, x.length, threads);
    ThetaGradient theta(s.grad_theta != nullptr, (x.length + kPositions - 1) / kPositions, x.dim);
    for_pieces<T>(x.length, kPositions, 80 * x.batch * x.heads * x.dim, 5 * table.turns.room, threads,
                  [&](int64_t first, int64_t last, T* scratch, int64_t task) {
      kernels_of<T>().features_gradient(s, table.turns, first, last, scratch, theta.of(task));
    });
    theta.write(s.grad_theta, s.rotation.theta_dtype);
  });
}

void blocks(const Blocks& s, const Threads& threads) {
  if (s.inputs.length == 0 || s.inputs.dim == 0) return;
  with_type(s.inputs.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Table<T> table(s.rotation, s.inputs.dim, std::min(s.size, s.inputs.length), threads);
    for_blocks<T>(s, threads, [&](int64_t block, int64_t b, int64_t head, T* scratch, int64_t) {
      kernels_of<T>().blocks(s, table.turns, block, b, head, scratch);
    });
  });
}

void blocks_gradient(const BlocksGradient& s, const Threads& threads) {
  const Joined& x = s.blocks.inputs;
  ThetaGradient theta(s.grad_theta != nullptr, x.length == 0 ? 0 : blocks_of(s.blocks), x.dim);
  if (x.length > 0 && x.dim > 0) {
    with_type(x.dtype, [&](auto zero) {
      using T = decltype(zero);
      const Table<T> table(s.blocks.rotation, x.dim, std::min(s.blocks.size, x.length), threads);
      for_blocks<T>(s.blocks, threads, [&](int64_t block, int64_t b, int64_t head, T* scratch, int64_t task) {
        kernels_of<T>().blocks_gradient(s, table.turns, block, b, head, scratch, theta.of(task));
      });
    });
  }
  theta.write(s.grad_theta, s.blocks.rotation.theta_dtype);
}

}  // namespace cla
