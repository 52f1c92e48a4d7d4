// One launch of the kernel in scan.cuh.
//
// Forward and backward are scans over the rows of a head:
//
//     out[i] = sum over j <= i of (a[i] . b[j]) c[j]  +  a[i] @ S
//
// with (a, b, c) = (q, k, v) for the output, (grad_out, v, k) for the gradient of q, and from the last row to
// the first (k, q, grad_out) for the gradient of v and (v, grad_out, q) for that of k. One block of threads
// takes one segment of one head's rows, in chunks. The gradients of k and v are scans of one launch, whose
// blocks run side by side because they read the same rows. With too few heads to fill the GPU the length is cut
// into segments: a first launch computes each segment's own sum of b^T c, a second one starts every segment from
// the sum of those before it.
#pragma once

#include <cstdint>

#include "../problem.h"

namespace cla::cuda {

// What the normaliser adds. forward: out[i] is divided by a[i] . z[i] + eps, z summing b, and the inverse goes
// to weights[i]. dq: out[i] is multiplied by weights[i], then gains slope[i] z[i], where z sums c and
// slope[i] = -(queries[i] . out[i]) weights[i], which goes to slopes[i]. dkdv: every inner product with row j is
// multiplied by weights[j] and gains slopes[j] if there are any; its rows, and therefore weights and slopes, come
// from the last to the first. Without one all scans are alike.
enum class Normaliser : int { none, forward, dq, dkdv };

// The rows of all heads, the first to be read at data + batch and head's offsets; row < 0 goes backwards.
struct Rows {
  char* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides in bytes
  int columns = 0;
  bool aligned = false;  // every row starts and ends at 16 bytes
};

// Element (m, d) of head h at data + h * head + m * column + d * row: m counts c's columns, d those of a and b.
// Element x of the vector beside it, which a normaliser keeps, at data + h * head + vector + x * vector_step.
struct State {
  float* data = nullptr;
  int64_t head = 0;
  int row = 0, column = 0, vector = 0, vector_step = 0;
};

struct Scan {
  Rows a, b, c, queries, out;
  int depth = 0, width = 0;  // columns of a and b, of c
  State initial, final;
  bool vector = false;       // z or, in the gradient of k, the sum of c[j] slopes[j]
  float* weights = nullptr;  // (heads, length): the inverse denominators
  float* slopes = nullptr;   // the same shape, or null
  float* sums = nullptr;     // (heads, segments, registers of a block), if there are several segments
};

constexpr int kMaxScans = 2;

struct Scans {
  Scan scan[kMaxScans];
  int count = 1;
  int heads = 0, heads_of_a_batch = 1;
  int length = 0;
  float eps = 0.0f;
  // Filled in by `plan`.
  int segments = 1, stages = 1, segment_rows = 0;
};

}  // namespace cla::cuda
