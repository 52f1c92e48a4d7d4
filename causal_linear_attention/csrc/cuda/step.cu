// One decoding position of every head in one launch: state_out = state + k^T v, out = q @ state_out.
//
// A block takes 32 columns of one head's state, a lane one of them, a warp every eighth row. Nearly all of the
// time is for reading and writing the state, once each.
#include "mma.cuh"

namespace cla::cuda {
namespace {

constexpr int kWarps = 8, kColumns = 32;

struct Step {
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // (heads, depth) and (heads, width)
  const float* state = nullptr;                         // (heads, depth, width + normalize)
  float* state_out = nullptr;
  void* out = nullptr;
  int depth = 0, width = 0;
  bool normalize = false;
  float eps = 0.0f;
};

// This thread's share of q . z, z with k added: the state's last column. Every block needs all of it.
template <class In>
CLA_DEVICE float share_of_denominator(const Step& s, const In* q, const In* k, const float* state) {
  const int columns = s.width + 1;
  float total = 0.0f;
  for (int d = thread_index(); d < s.depth; d += 32 * kWarps) {
    total += number(q[d]) * (state[int64_t{d} * columns + s.width] + number(k[d]));
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
  return total;
}

template <class In>
CLA_KERNEL(32 * kWarps, 1)
step_kernel(CLA_PARAMETER Step s) {
  const int lane = lane_index(), warp = warp_index();
  const int columns = s.width + s.normalize, column = segment_index() * kColumns + lane;
  const int64_t head = block_index(), offset = head * s.depth * columns;
  const In* const q = static_cast<const In*>(s.q) + head * s.depth;
  const In* const k = static_cast<const In*>(s.k) + head * s.depth;
  float* const totals = reinterpret_cast<float*>(shared_memory());  // (warps + 1, columns)
  float total = 0.0f;
  if (column < columns) {
    const float value = column < s.width ? number(static_cast<const In*>(s.v)[head * s.width + column]) : 1.0f;
#pragma unroll 8
    for (int d = warp; d < s.depth; d += kWarps) {
      const int64_t at = offset + int64_t{d} * columns + column;
      const float sum = s.state[at] + number(k[d]) * value;
      s.state_out[at] = sum;
      total += number(q[d]) * sum;
    }
  }
  totals[warp * kColumns + lane] = total;
  if (s.normalize) {
    sync_warp();
    const float share = share_of_denominator(s, q, k, s.state + offset);
    if (lane == 0) totals[kWarps * kColumns + warp] = share;
  }
  sync_threads();
  if (warp > 0 || column >= s.width) return;
  float denominator = s.eps;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) total += totals[w * kColumns + lane];
  for (int w = 0; w < kWarps && s.normalize; ++w) denominator += totals[kWarps * kColumns + w];
  store(s.normalize ? total / denominator : total, static_cast<In*>(s.out) + head * s.width + column);
}

template <class In>
const char* launch_step(const Step& s, int64_t heads, const Device& device, void* stream) {
  constexpr int kSharedBytes = (kWarps + 1) * kColumns * 4;
  const int tiles = (s.width + s.normalize + kColumns - 1) / kColumns;
  return launch_kernel<step_kernel<In>>(s, device, heads, tiles, 32 * kWarps, kSharedBytes, stream);
}

}  // namespace

const char* step(const Problem& p, void* out, void* state_out, const Device& device, void* stream) {
  const int64_t heads = p.batch * p.heads;
  if (heads == 0 || p.width + p.normalize == 0) return nullptr;
  Step s;
  s.q = p.q.data;
  s.k = p.k.data;
  s.v = p.v.data;
  s.state = static_cast<const float*>(p.state);
  s.state_out = static_cast<float*>(state_out);
  s.out = out;
  s.depth = static_cast<int>(p.depth);
  s.width = static_cast<int>(p.width);
  s.normalize = p.normalize;
  s.eps = static_cast<float>(p.eps);
  return with_type(p.dtype, [&](auto number) { return launch_step<decltype(number)>(s, heads, device, stream); });
}

}  // namespace cla::cuda
