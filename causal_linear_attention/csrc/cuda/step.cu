// One decoding position of every head in one launch: state_out = decay state + k^T v, out = scale q @ state_out.
//
// A block takes 32 columns of one state, a lane one of them, a warp every eighth row, for all heads of q that share it.
// Nearly all of the time is for reading and writing the state, once each; further heads of q find it in a cache.
#include "step.cuh"

namespace cla::cuda {
namespace {

struct Step {
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // (heads, group, depth), (heads, depth) and (heads, width)
  const float* state = nullptr;                         // (heads, depth, width + normalize)
  float* state_out = nullptr;
  void* out = nullptr;  // (heads, group, width)
  int depth = 0, width = 0, group = 1;
  bool normalize = false;
  float eps = 0.0f, scale = 1.0f;
  const float* decay = nullptr;  // a head's own, or null
  int heads_of_a_batch = 1;
  int64_t decay_batch = 0, decay_head = 0;  // strides
};

// This thread's share of q . z, z with k added: the state's last column. Every block needs all of it.
template <bool kDecayed, class In>
CLA_DEVICE float share_of_denominator(const Step& s, const In* q, const In* k, const float* state, float decay) {
  const int columns = s.width + 1;
  float total = 0.0f;
  for (int d = thread_index(); d < s.depth; d += 32 * kStepWarps) {
    total += number(q[d]) * (decayed<kDecayed>(state[int64_t{d} * columns + s.width], decay) + number(k[d]));
  }
  return sum_of_lanes(total);
}

// Of this lane's column, from the warps' shares of it and of the denominator.
CLA_DEVICE float output_of(const Step& s, const float* totals) {
  const float total = sum_of_warps(totals);
  if (!s.normalize) return s.scale * total;
  float denominator = s.eps;
  for (int w = 0; w < kStepWarps; ++w) denominator += totals[kStepWarps * kStepColumns + w];
  return s.scale * (total / denominator);
}

template <class In, bool kDecayed>
CLA_KERNEL(32 * kStepWarps, 1)
step_kernel(CLA_PARAMETER Step s) {
  const int lane = lane_index(), warp = warp_index();
  const int columns = s.width + s.normalize, column = segment_index() * kStepColumns + lane;
  const int64_t head = block_index(), offset = head * s.depth * columns;
  const In* const k = static_cast<const In*>(s.k) + head * s.depth;
  float* const totals = reinterpret_cast<float*>(shared_memory());  // (warps + 1, columns)
  float decay = 1.0f;
  if constexpr (kDecayed) {
    decay = s.decay[head / s.heads_of_a_batch * s.decay_batch + head % s.heads_of_a_batch * s.decay_head];
  }
  for (int member = 0; member < s.group; ++member) {
    const int64_t of_q = head * s.group + member;
    const In* const q = static_cast<const In*>(s.q) + of_q * s.depth;
    float total = 0.0f;
    if (column < columns && member > 0) {
      total = multiply_column(q, s.depth, columns, s.state_out + offset + column);
    } else if (column < columns) {
      const float value = column < s.width ? number(static_cast<const In*>(s.v)[head * s.width + column]) : 1.0f;
      total = add_to_column<kDecayed>(q, k, value, s.depth, columns, s.state + offset + column,
                                      s.state_out + offset + column, decay);
    }
    totals[warp * kStepColumns + lane] = total;
    if (s.normalize) {
      sync_warp();
      const float share = share_of_denominator<kDecayed>(s, q, k, s.state + offset, decay);
      if (lane == 0) totals[kStepWarps * kStepColumns + warp] = share;
    }
    sync_threads();
    if (warp == 0 && column < s.width) {
      store(output_of(s, totals), static_cast<In*>(s.out) + of_q * s.width + column);
    }
    sync_threads();  // before the next head's totals
  }
}

template <class In>
const char* launch_step(const Step& s, int64_t heads, const Device& device, void* stream) {
  constexpr int kSharedBytes = (kStepWarps + 1) * kStepColumns * 4;
  const int tiles = (s.width + s.normalize + kStepColumns - 1) / kStepColumns;
  if (s.decay != nullptr) {
    return launch_kernel<step_kernel<In, true>>(s, device, heads, tiles, 32 * kStepWarps, kSharedBytes, stream);
  }
  return launch_kernel<step_kernel<In, false>>(s, device, heads, tiles, 32 * kStepWarps, kSharedBytes, stream);
}

}  // namespace

const char* step(const Problem& p, void* out, void* state_out, const Device& device, void* stream) {
  const int64_t heads = p.batch * p.heads / p.k.group;
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
  s.group = static_cast<int>(p.k.group);
  s.normalize = p.normalize;
  s.eps = static_cast<float>(p.eps);
  s.scale = static_cast<float>(p.scale);
  s.decay = static_cast<const float*>(p.decay.data);
  s.heads_of_a_batch = static_cast<int>(p.heads / p.k.group);
  s.decay_batch = p.decay.batch;
  s.decay_head = p.decay.head;
  return with_type(p.dtype, [&](auto number) { return launch_step<decltype(number)>(s, heads, device, stream); });
}

}  // namespace cla::cuda
