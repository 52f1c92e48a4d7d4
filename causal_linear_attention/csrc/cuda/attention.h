// Forward, backward and decoding step of causal linear attention on a GPU: plain C++, no torch, no CUDA headers.
// Pointers lie on the current device.
#pragma once

#include <functional>

#include "../problem.h"

namespace cla::cuda {

// Of q, k and v, but for a step. A thread keeps half as many numbers of the state in registers: 64 of its 128 with 128
// columns. Wide heads have more: a block has 128 columns of an output and, for those, up to 128 numbers of the state in
// each thread. float32, whose products need more registers, has no wide heads.
constexpr int64_t kColumnsOfBlock = 128;
inline bool is_wide(const Problem& p) { return p.depth > kColumnsOfBlock || p.width > kColumnsOfBlock; }
constexpr int parts_of(int64_t columns) { return static_cast<int>((columns + kColumnsOfBlock - 1) / kColumnsOfBlock); }
constexpr int64_t max_columns(Dtype dtype) { return bytes_of(dtype) == 2 ? 2 * kColumnsOfBlock : kColumnsOfBlock; }
constexpr int kMaxStages = 4;         // of a block's shared memory, each with a chunk of every array

// What the current device offers.
struct Device {
  int index = 0;
  int capability = 0;  // 10 * major + minor
  int multiprocessors = 0;
  int shared_bytes = 0;  // that one block may ask for
};

// Forward keeps states for backward, if Outputs asks for them: of each head those before rows kept_rows,
// 2 kept_rows and so on of each sequence, float32 and laid out like Problem's. With heads of 64 or 128 columns they take
// a quarter of a tensor's memory, half as much in float32 and 64. operators.py follows the same rule. Packed, what lies
// before row i of the batch row has number i / kept_rows - 1, which no other sequence's has. Wide heads keep none.
inline int64_t kept_rows(const Problem& p) {
  return bytes_of(p.dtype) == 2 && (p.depth > 64 || p.width > 64) ? 1024 : 512;
}
inline int64_t kept_states(const Problem& p) {
  return p.rows > 0 && !is_wide(p) ? (p.rows - 1) / kept_rows(p) : 0;
}

// Gives scratch memory for so many float32 numbers, which the launched kernels use.
using Allocate = std::function<float*(int64_t numbers)>;

// Launch on the stream, never wait; return null or why a launch failed.
const char* forward(const Problem&, const Outputs&, const Device&, const Allocate&, void* stream);
const char* backward(const Problem&, const Gradients&, const Device&, const Allocate&, void* stream);

// q: (batch, heads, depth), out: (batch, heads, width), k and v the same of their heads, contiguous, of any size; rows
// is 1.
const char* step(const Problem&, void* out, void* state_out, const Device&, void* stream);

}  // namespace cla::cuda
