// What the CPU's and the GPU's kernels are asked, in plain C++: no torch, no CUDA.
// Every pointer is borrowed and lies on the device that computes, every stride counts elements.
#pragma once

#include <cstdint>

namespace cla {

enum class Dtype : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

constexpr int64_t bytes_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

// A (batch, heads, rows, columns) array whose last dimension is contiguous.
struct Array {
  void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides
  int64_t group = 1;                     // heads of q that share one of its heads, side by side
};

// Sums are float64 for float64 inputs, else float32, and so is a state: (batch, heads of k, depth, width + normalize),
// contiguous; null is zero. k, v and decay have one group.
struct Problem {
  int64_t batch = 0, heads = 0, rows = 0, depth = 0, width = 0;  // heads of q
  Dtype dtype = Dtype::f32;
  bool normalize = false;
  double eps = 0.0;
  double scale = 1.0;  // of the outputs
  Array q, k, v;
  const void* state = nullptr;
  // Packed: the one batch row holds several sequences, sequence s in rows [offsets[s], offsets[s + 1]), and
  // states are (sequences, heads of k, depth, width + normalize). Null: every batch row is one sequence.
  const int32_t* offsets = nullptr;
  int64_t sequences = 0;
  // What every row multiplies the state by before it is added, of the sums' type; null: nothing. Strides of 0 where
  // a number holds for several rows.
  Array decay;
};

// `inverse`, 1 / (q . z + eps) in (batch, heads, rows), is written with a normaliser only, `kept` by the CUDA kernels
// only (see cuda/attention.h), and not if it is null.
struct Outputs {
  Array out;
  void* state = nullptr;    // may be null on a CPU, as that of Gradients
  void* inverse = nullptr;
  void* kept = nullptr;
};

// Those of k, v, the initial state and the decays are by head of q, whose sums over groups are left to the caller.
struct Gradients {
  Array grad_out;
  const void* grad_state = nullptr;  // may be null
  const void* inverse = nullptr;     // what forward wrote
  Array q, k, v;
  void* state = nullptr;
  const void* kept = nullptr;  // what forward wrote
  Array out;                   // the same, if the CUDA kernels' backward pass needs it (see operators.py)
  void* log_decay = nullptr;   // (batch, heads, rows) of the sums' type, with decays
};

}  // namespace cla
