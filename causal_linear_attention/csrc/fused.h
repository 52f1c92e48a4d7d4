// The steps of a TransNormer layer that lie between its matrix products, each in one pass: plain C++, no torch, no
// CUDA. Sums are float64 for float64 inputs, else float32. Arrays are contiguous where nothing else is said.
#pragma once

#include <cstdint>

#include "problem.h"

namespace cla {

// A number is kept where its random word (see Philox below) is at least `threshold`, and is then multiplied by
// `scale`. The word is that of the row, and of the column in it: word (column / 16) % 4 of the counter
// (column / 64 * 16 + column % 16, row). Without a seed everything is kept.
struct Dropout {
  const int64_t* seed = nullptr;  // on the device
  uint32_t threshold = 0;
  double scale = 1;
};

// Philox4x32 with 7 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
constexpr int kPhiloxRounds = 7;
constexpr uint32_t kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxKey0 = 0x9E3779B9u, kPhiloxKey1 = 0xBB67AE85u;

// sum = x + dropout(y), or x without a y; root = the root mean square of each row of it; out = sum / (root + eps).
// Arrays are (rows, width) of one dtype. Without `out` there is no norm, without `sum` it is not written.
struct Residual {
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::f32;
  double eps = 0;
  Dropout dropout;
  const void *x = nullptr, *y = nullptr;
  void *sum = nullptr, *out = nullptr, *root = nullptr;  // root: (rows), of the accumulation type
};

// grad_x = grad_sum + the norm's gradient, grad_y = dropout of it. Null: no such gradient, or none wanted. In float16,
// which cannot hold it, the norm's gradient at a row of zeros is none.
struct ResidualGradient {
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::f32;
  double eps = 0;
  Dropout dropout;
  const void *grad_sum = nullptr, *grad_out = nullptr, *out = nullptr, *root = nullptr;
  void *grad_x = nullptr, *grad_y = nullptr;
};

// out = silu(gate) * value of rows that hold gates, then values: (rows, 2 width) to (rows, width). A row of `inputs`
// begins `stride` numbers after the one before.
struct Gated {
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::f32;
  const void* inputs = nullptr;
  int64_t stride = 0;
  void* out = nullptr;
};

// The gradient of the inputs from that of `out`; and `out` again, for the gradient of the matrix behind it.
struct GatedGradient {
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::f32;
  const void *inputs = nullptr, *grad = nullptr;
  int64_t stride = 0, grad_stride = 0;
  void* grad_inputs = nullptr;
  int64_t grad_inputs_stride = 0;
  void* out = nullptr;
};

// Matrix products are slow at rows that begin anywhere: those of a gated unit begin at multiples of this many numbers.
constexpr int64_t kAlignedRows = 16;

enum class Map : int { none = 0, elu = 1, one_plus_elu = 2 };

// Queries, keys and values side by side: (length, batch, 3, heads, dim).
struct Joined {
  int64_t length = 0, batch = 0, heads = 0, dim = 0;
  Dtype dtype = Dtype::f32;
  const void* qkv = nullptr;
};

// LRPE: y = scale (x - 2 (x . direction) direction), then pairs of channels turned by position * theta. Null: y =
// scale x.
struct Rotation {
  const void *direction = nullptr, *theta = nullptr;  // (dim) and (dim / 2)
  Dtype direction_dtype = Dtype::f32, theta_dtype = Dtype::f32;
  double scale = 1;
};

// q and k mapped and turned, position n by n angles, to (batch, heads, length, dim).
struct Features {
  Joined inputs;
  Map map = Map::none;
  Rotation rotation;
  void *q = nullptr, *k = nullptr;
};

// The gradient of qkv from those of q and k, mapped and turned, and of v; grad_theta has theta's dtype, or is null.
struct FeaturesGradient {
  Joined inputs;
  Map map = Map::none;
  Rotation rotation;
  Array grad_q, grad_k, grad_v;
  void *grad_qkv = nullptr, *grad_theta = nullptr;
};

// Attention inside blocks of `size` positions; the last block may be shorter. q and k are turned by their places in
// the block; weights are relu or softmax of q . k, and dropped out by the row (batch, head, position) and the place
// of the key. out: (length, batch, heads, dim). A row that sees nothing becomes zero.
struct Blocks {
  Joined inputs;
  Rotation rotation;
  int64_t size = 0;
  bool causal = false, softmax = false;
  const bool* padding = nullptr;  // (batch, length), true where a position is no key; null: all are
  Dropout dropout;
  void* out = nullptr;
};

struct BlocksGradient {
  Blocks blocks;  // without out
  const void* grad_out = nullptr;
  void *grad_qkv = nullptr, *grad_theta = nullptr;
};

}  // namespace cla
