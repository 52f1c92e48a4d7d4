// What a CPU kernel computes, free of torch and of instruction sets.
//
// Every kernel of causal linear attention, forward and backward, is one "scan" over the rows of a head:
//
//     out[i] = sum over j <= i of (a[i] . b[j]) c[j]  +  a[i] @ S,      S: (depth, width)
//
// The forward pass has (a, b, c) = (q, k, v). The gradient of q has (grad_out, v, k) and the transposed
// state. Those of k and v are a pair: one scan from the last row to the first (negative strides) with
// (v, grad_out, q), whose state, transposed, also serves (k, q, grad_out):
//
//     pair_out[i] = sum over j <= i of (pair[i] . c[j]) b[j]  +  pair[i] @ S^T
//
// With a normaliser the inner products of the gradients gain one more column.
//
// With decays, row i multiplies the state by decay[i] before it is added: L[i][j], the product of decay[t] over
// j < t <= i, weighs a[i] . b[j], and the product over all t <= i the state that enters. From the last row to the
// first the same holds with decay[i + 1] for row i and 1 for the last. The gradient of a decay's logarithm is the
// sum of q[i] . dq[i] - k[i] . dk[i] over the rows from it on. It is taken within blocks of kBlockRows, from the
// inner product of the state after a block with its gradient, so that rounding errors do not add up over a head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../problem.h"
#include "fused.h"

namespace cla {

// Rows of one head: element (i, x) is data[i * stride + x], times `factor` and optionally scale[i]. `extra` adds a
// last column: extra[i * extra_stride]. Scales and extra columns are of the accumulation type.
struct Rows {
  const void* data = nullptr;
  int64_t stride = 0;
  Dtype dtype = Dtype::f32;
  const void* scale = nullptr;
  const void* extra = nullptr;
  int64_t scale_stride = 0;
  int64_t extra_stride = 0;
  double factor = 1.0;
};

struct Segment {
  Rows a, b, c;          // of the whole head
  int64_t depth = 0;     // columns of a and b, the extra column included
  int64_t width = 0;     // columns of c and of out
  int64_t begin = 0;     // rows [begin, end) are computed
  int64_t end = 0;
  int64_t rows = 0;      // rows of the whole head, for prefetching
  void* out = nullptr;   // row i at out + i * out_stride; null: only the sums are wanted
  int64_t out_stride = 0;
  Dtype out_dtype = Dtype::f32;
  double factor = 1.0;     // of the outputs
  bool streaming = false;  // outputs larger than the caches: write around them
  // The second of a pair: rows of `width` columns, and where its outputs go, of `pair_width` columns (the
  // first of b's). Of the same type as `out`.
  Rows pair;
  void* pair_out = nullptr;
  int64_t pair_stride = 0;
  int64_t pair_width = 0;
  bool pair_streaming = false;
  // Normaliser of the forward pass: out[i] is divided by a[i] . z[i] + eps, whose inverse goes to
  // inverse[i]. z starts from the vector behind the state.
  bool normalize = false;
  double eps = 0.0;
  void* inverse = nullptr;
  // Gradient of q with a normaliser (b's last column is one, so the state's last row is z): with `queries`
  // set, out[i] becomes out[i] + slope[i] z[i], slope[i] = -(queries[i] . out[i]) inverse[i].
  Rows queries;
  void* slope = nullptr;
  // Decays, whether of the instruction set's decayed scan: row i has decay[i * decay_stride], the first row 1 if
  // `shifted`.
  const void* decay = nullptr;
  int64_t decay_stride = 0;
  bool shifted = false;
  // For the gradient of the decays. dots[i * direction] becomes dotted[i] . out[i], or loses it if `shifted`. A scan
  // keeps the states after its blocks of rows in `kept`, of state_size each; a shifted one, over the same rows from
  // the last to the first, multiplies them with its own there and writes the sums to `products`.
  Rows dotted;
  void* dots = nullptr;
  int64_t direction = 1;
  void* kept = nullptr;
  void* products = nullptr;
  int64_t blocks = 0;
};

constexpr int64_t kBlockRows = 512;

// A state is stored padded: `depth` rows of `pitch(width)` columns, then the normaliser's z.
constexpr int64_t kMaxLanes = 16;  // of the widest vector of 4-byte numbers
constexpr int64_t kChunk = 16;
constexpr int64_t kMaxRows = 8;    // rows of the tallest register tile

// Internal to each unit: they are compiled for different instruction sets, and the linker must not give one of
// them the copy of another.
static constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
static constexpr int64_t pitch(int64_t width) { return round_up(width, kMaxLanes); }
static constexpr int64_t padded_depth(int64_t depth) { return round_up(depth, kMaxLanes); }
static constexpr int64_t z_offset(int64_t depth, int64_t width) { return padded_depth(depth) * pitch(width); }
static constexpr int64_t state_size(int64_t depth, int64_t width) {
  return z_offset(depth, width) + padded_depth(depth);
}
// Elements of the accumulation type that one thread needs beside the state.
static constexpr int64_t workspace_size(int64_t depth, int64_t width) {
  return padded_depth(depth) * pitch(width)          // the state transposed
         + 4 * padded_depth(depth) * kChunk          // a, b, b transposed, the pair's out
         + 4 * pitch(width) * kChunk                 // c, c transposed, out, queries or pair
         + kChunk * kChunk + kChunk + pitch(width);
}

// One decoding position of one head: state_out = decay state + k^T v, out = scale q @ state_out (normalised). Where the
// state holds the position already, for another head of q, out alone is written.
struct Step {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  Dtype dtype = Dtype::f32;
  const void* state = nullptr;
  void* state_out = nullptr;
  void* out = nullptr;
  int64_t depth = 0, width = 0;
  bool normalize = false;
  double eps = 0.0;
  double scale = 1.0;
  const void* decay = nullptr;  // of the sums' type; null for 1
  bool held = false;
};

// Some rows times a matrix whose rows are as long: out[r][i] = x[r] . weight[i] + bias[i] + residual[r][i], the last two
// where they are given. Arrays are contiguous.
struct Product {
  int64_t rows = 0, depth = 0, width = 0;
  const float *x = nullptr, *weight = nullptr, *bias = nullptr, *residual = nullptr;
  float* out = nullptr;
};

// What one instruction set offers; `state` enters the segment and gains its sum of b[j]^T c[j] (and of b[j]
// for z).
struct Kernels {
  const char* name;
  void (*segment_f32)(const Segment&, float* state, float* workspace);
  void (*segment_f64)(const Segment&, double* state, double* workspace);
  void (*decayed_f32)(const Segment&, float* state, float* workspace);
  void (*decayed_f64)(const Segment&, double* state, double* workspace);
  void (*step_f32)(const Step&);
  void (*step_f64)(const Step&);
  void (*product)(const Product&, int64_t first, int64_t last);  // columns [first, last) of all rows
  const FusedKernels<float>* fused_f32;
  const FusedKernels<double>* fused_f64;
};

}  // namespace cla
