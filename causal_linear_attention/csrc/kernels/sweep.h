// The CUDA kernel's launcher: plain C++ and CUDA, no torch. What a sweep is, csrc/cpu/kernels.h says.
//
// One block of threads walks through one segment of one head, chunk by chunk, with everything it works on
// in shared memory as float32: the chunk's rows of a, b and c, their scores and the state. bfloat16 and
// float16 rows are multiplied by tensor cores (TF32, which holds both types exactly; sums in float32) on
// compute capability 8.0 and later; float32 rows, and all rows before 8.0, by ordinary multiply-adds.
// With too few heads to fill the GPU the length is cut into segments: a first launch computes each
// segment's own sum of b^T c, a second one starts every segment from the sum of those before it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cla_cuda {

enum class Dtype : int { f32 = 0, bf16 = 1, f16 = 2 };

// Row i of head h of batch b starts at data + b * batch + h * head + i * row (elements; row < 0 to go
// backwards). Row i is multiplied by scale[i] and followed by one more column, extra[i]. Both are float32,
// (batch, heads, rows), read in the same direction; extra_constant takes the place of a null extra.
struct Operand {
  void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
  const float* scale = nullptr;
  const float* extra = nullptr;
  float extra_constant = 0.0f;
  bool has_extra = false;
};

// Element (row, column) of head h at data + h * head + row * row_stride + column * column_stride.
struct State {
  float* data = nullptr;
  int64_t head = 0, row = 0, column = 0;
};

struct Sweep {
  int64_t heads = 0;       // batch * heads_of_a_batch blocks
  int64_t heads_of_a_batch = 1;
  int64_t rows = 0;
  int depth = 0, width = 0;  // columns of a and b (the extra one included), of c and out
  Dtype dtype = Dtype::f32;
  Operand a, b, c, out;
  bool reverse = false;    // scale, extra, inverse and slope are read from the last row on
  State initial, final;    // data may be null
  // Normaliser of the forward pass: the columns behind `width` of the states are z.
  bool normalize = false;
  float eps = 0.0f;
  float* inverse = nullptr;  // (batch, heads, rows): written by the forward pass, else read
  // Gradient of q with a normaliser (see csrc/cpu/kernels.h).
  Operand queries;
  float* slope = nullptr;
  // Filled in by `plan`.
  int segments = 1;
  int64_t segment_rows = 0;
  int chunk = 0;
  float* sums = nullptr;   // heads * segments * sums_size(sweep) float32, if segments > 1
};

// Chooses segments and chunk for the current device; false if the sizes do not fit its shared memory.
bool plan(Sweep& sweep);
int64_t sums_size(const Sweep& sweep);
// Launches on the stream and returns what cudaGetLastError says.
cudaError_t launch(const Sweep& sweep, cudaStream_t stream);

}  // namespace cla_cuda
