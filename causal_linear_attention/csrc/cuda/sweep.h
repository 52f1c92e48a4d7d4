// One launch of the kernel in sweep.cuh.
//
// Forward and backward are sweeps over the rows of a head (csrc/cpu/kernels.h has the formulas):
//
//     out[i] = sum over j <= i of (a[i] . b[j]) c[j]  +  a[i] @ S
//
// One block of threads walks through one segment of one head in chunks of rows. It may do two sweeps over the
// same rows at once: the gradients of k and v share all they read. With too few heads to fill the GPU the
// length is cut into segments: a first launch computes each segment's own sum of b^T c, a second one starts
// every segment from the sum of those before it.
#pragma once

#include "attention.h"

namespace cla_cuda {

// What the normaliser adds. forward: c has one more column, of ones, which gives the denominators.
// queries (gradient of q): out is multiplied by weights, then gains slope[i] z[i], where z sums c and
// slope[i] = -(queries[i] . out[i]) weights[i]. values (gradients of k and v): every inner product with row
// j is multiplied by weights[j], and in a sweep with a vector gains slopes[j].
enum class Normaliser : int { none, forward, queries, values };

// One head's rows, the first to be walked at data + batch and head's offsets; row < 0 walks backwards.
struct Rows {
  char* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
  int columns = 0;
  bool aligned = false;  // every row starts and ends at 16 bytes
};

// Element (m, d) of head h at data + h * head + m * column + d * row: m counts c's columns, d those of a and
// b. `vector`, where a sweep has one, is the offset of its element m = 0.
struct State {
  float* data = nullptr;
  int64_t head = 0;
  int row = 0, column = 0, vector = 0;
};

struct Part {
  int a = 0, b = 0, c = 0;   // which of the sweep's rows
  int depth = 0, width = 0;  // columns of a and b, of c (the ones included)
  bool vector = false;       // a sum over rows of c beside the state: z, or of c[j] slopes[j]
  Rows out;
  State initial, final;
  float* sums = nullptr;  // (heads, segments, width, depth + 1), if there are several segments
};

constexpr int kMaxTiles = 4, kMaxParts = 2;

struct Sweep {
  int64_t heads = 0, heads_of_a_batch = 1, length = 0;
  Dtype dtype = Dtype::f32;
  bool reverse = false;  // weights and slopes are read from the last row on
  Rows rows[kMaxTiles];
  int tiles = 0;
  Part parts[kMaxParts];
  int part_count = 1;
  Normaliser normaliser = Normaliser::none;
  float eps = 0.0f;
  float* weights = nullptr;  // (heads, length): the inverse denominators
  float* slopes = nullptr;   // the same shape: written by `queries`, read by `values`
  Rows queries;
  // Filled in by `plan`.
  int segments = 1, stages = 1;
  int64_t segment_rows = 0;
  bool only_sums = false;
};

struct Bf16;
struct Half;

// Bytes of shared memory that a block asks for, and one launch, for inputs of type float, Bf16 or Half.
template <class In>
struct Launcher {
  static int64_t shared_bytes(const Sweep& sweep, int capability);
  static const char* launch(const Sweep& sweep, int capability, void* stream);
};

// Chooses segments and stages; false if the sweep does not fit the device's shared memory.
bool plan(Sweep& sweep, const Device& device);
int64_t sums_size(const Sweep& sweep);  // of all parts, in float32 numbers
const char* launch(Sweep sweep, const Device& device, float* sums, void* stream);

}  // namespace cla_cuda
