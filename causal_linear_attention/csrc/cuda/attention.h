// Forward and backward of causal linear attention on a GPU: plain C++, no torch, no CUDA headers.
// Every pointer is borrowed and lies on the current device, every stride counts elements.
#pragma once

#include <cstdint>

namespace cla_cuda {

enum class Dtype : int { f32 = 0, bf16 = 1, f16 = 2 };

constexpr int kMaxColumns = 128;  // of q, k and v

// A (batch, heads, rows, columns) array whose last dimension is contiguous.
struct Array {
  void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides
};

// Sums are float32; a state is (batch, heads, depth, width + normalize), contiguous; null is zero.
struct Problem {
  int64_t batch = 0, heads = 0, rows = 0;
  int depth = 0, width = 0;
  Dtype dtype = Dtype::f32;
  bool normalize = false;
  float eps = 0.0f;
  Array q, k, v;
  float* state = nullptr;
};

// `inverse`, 1 / (q . z + eps) in (batch, heads, rows), is used with a normaliser only.
struct Outputs {
  Array out;
  float* state = nullptr;
  float* inverse = nullptr;
};

struct Gradients {
  Array grad_out;
  float* grad_state = nullptr;  // may be null
  float* inverse = nullptr;     // what forward wrote
  Array q, k, v;
  float* state = nullptr;
};

// What the current device offers.
struct Device {
  int capability = 0;  // 10 * major + minor
  int multiprocessors = 0;
  int shared_bytes = 0;  // that one block may ask for
};

// float32 numbers of scratch memory that `forward` or `backward` needs for this problem.
int64_t forward_scratch(const Problem&, const Device&);
int64_t backward_scratch(const Problem&, const Device&);

// Launch on the stream, never wait; return null or why a launch failed.
const char* forward(const Problem&, const Outputs&, const Device&, float* scratch, void* stream);
const char* backward(const Problem&, const Gradients&, const Device&, float* scratch, void* stream);

}  // namespace cla_cuda
