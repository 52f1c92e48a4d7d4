// One new token of NormAttention and DiagAttention, a launch each.
#include "decoding.h"

#include "step.cuh"

namespace cla::cuda {
namespace {

constexpr int kBlockWarps = 4;

// y, `dim` numbers in shared memory that this warp's lanes have written, reflected and turned in place by the warp.
CLA_DEVICE void turn_in_place(const Turn& turn, int64_t position, int dim, float* y) {
  float share = 0.0f;
  for (int i = lane_index(); i < dim; i += 32) share += y[i] * turn.direction[i];
  sync_warp();
  const float along = 2.0f * sum_of_lanes(share);
  for (int i = 2 * lane_index(); i < dim; i += 64) {
    const float re = turn.scale * (y[i] - along * turn.direction[i]);
    if (i + 1 == dim) {
      y[i] = re;
      break;
    }
    const float im = turn.scale * (y[i + 1] - along * turn.direction[i + 1]);
    const Rotation by = rotation(static_cast<double>(position) * turn.theta[i / 2]);
    y[i] = re * by.cosine - im * by.sine;
    y[i + 1] = re * by.sine + im * by.cosine;
  }
  sync_warp();
}

CLA_DEVICE float feature(float x, bool one_plus) {
  if (one_plus) return x > 0.0f ? x + 1.0f : exponential(x);
  return x > 0.0f ? x : exponential_minus_one(x);
}

// A block takes 32 columns of one head's state, like `step_kernel`, and maps all of q and k for itself.
CLA_KERNEL(32 * kStepWarps, 1)
norm_step_kernel(CLA_PARAMETER NormStep s) {
  const int dim = static_cast<int>(s.dim), lane = lane_index(), warp = warp_index();
  const int column = segment_index() * kStepColumns + lane;
  const int64_t head = block_index(), offset = head * dim * dim + column;
  float* const q = reinterpret_cast<float*>(shared_memory());  // (dim), and so is k
  float *const k = q + dim, *const totals = k + dim;           // (warps, columns)
  if (warp < 2) {
    float* const to = warp == 0 ? q : k;
    const float* const from = (warp == 0 ? s.q : s.k) + head * dim;
    for (int i = lane; i < dim; i += 32) to[i] = feature(from[i], s.one_plus);
    turn_in_place(s.turn, s.turn.positions[head / s.heads], dim, to);
  }
  sync_threads();
  float total = 0.0f;
  if (column < dim) {
    total = add_to_column(q, k, s.v[head * dim + column], dim, dim, s.state + offset, s.state_out + offset);
  }
  totals[warp * kStepColumns + lane] = total;
  sync_threads();
  if (warp == 0 && column < dim) s.out[head * dim + column] = sum_of_warps(totals);
}

// The largest of `count` numbers, in all lanes of a warp.
CLA_DEVICE float largest(const float* x, int count) {
  float found = x[0];
  for (int i = lane_index(); i < count; i += 32) found = maximum(found, x[i]);
  sync_warp();
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) found = maximum(found, shuffle_xor(found, mask));
  return found;
}

// Scores become weights up to the factor that is returned, a block's threads together.
CLA_DEVICE float weigh(bool softmax, int count, float* scores) {
  const float highest = softmax ? largest(scores, count) : 0.0f;
  sync_threads();
  for (int j = thread_index(); j < count; j += 32 * kBlockWarps) {
    scores[j] = softmax ? exponential(scores[j] - highest) : scores[j] < 0.0f ? 0.0f : scores[j];
  }
  sync_threads();
  if (!softmax) return 1.0f;
  float total = 0.0f;
  for (int j = lane_index(); j < count; j += 32) total += scores[j];
  sync_warp();
  return 1.0f / sum_of_lanes(total);
}

// A block takes one head: its first warp turns q, the second k.
CLA_KERNEL(32 * kBlockWarps, 1)
block_step_kernel(CLA_PARAMETER BlockStep s) {
  const int dim = static_cast<int>(s.dim), lane = lane_index(), warp = warp_index();
  const int64_t head = block_index(), place = s.turn.positions[head / s.heads];
  float* const out = s.out + head * dim;
  if (place < 0 || place >= s.size) {
    for (int i = thread_index(); i < dim; i += 32 * kBlockWarps) out[i] = not_a_number(0.0f);
    return;
  }
  float* const keys = s.keys + head * s.size * dim;
  float* const values = s.values + head * s.size * dim;
  float* const q = reinterpret_cast<float*>(shared_memory());  // (dim), and so is k
  float *const k = q + dim, *const scores = k + dim;           // (size)
  if (warp < 2) {
    float* const to = warp == 0 ? q : k;
    const float* const from = (warp == 0 ? s.q : s.k) + head * dim;
    for (int i = lane; i < dim; i += 32) to[i] = from[i];
    turn_in_place(s.turn, place, dim, to);
    if (warp == 1) {
      for (int i = lane; i < dim; i += 32) keys[place * dim + i] = to[i];
    }
  } else {
    for (int i = thread_index() - 64; i < dim; i += 32 * (kBlockWarps - 2)) values[place * dim + i] = s.v[head * dim + i];
  }
  sync_threads();
  const int count = static_cast<int>(place) + 1;
  for (int j = warp; j < count; j += kBlockWarps) {
    float share = 0.0f;
    for (int i = lane; i < dim; i += 32) share += q[i] * keys[int64_t{j} * dim + i];
    sync_warp();
    const float score = sum_of_lanes(share);
    if (lane == 0) scores[j] = score;
  }
  sync_threads();
  const float factor = weigh(s.softmax, count, scores);
  for (int i = thread_index(); i < dim; i += 32 * kBlockWarps) {
    float total = 0.0f;
#pragma unroll 8
    for (int j = 0; j < count; ++j) total += scores[j] * values[int64_t{j} * dim + i];
    out[i] = factor * total;
  }
}

// Of shared memory for so many numbers, in whole multiples of its alignment.
constexpr int64_t shared_bytes_of(int64_t numbers) { return (4 * numbers + 127) / 128 * 128; }

}  // namespace

const char* norm_step(const NormStep& s, const Device& device, void* stream) {
  const int64_t heads = s.batch * s.heads;
  if (heads == 0 || s.dim == 0) return nullptr;
  const int tiles = static_cast<int>((s.dim + kStepColumns - 1) / kStepColumns);
  const int64_t shared_bytes = shared_bytes_of(2 * s.dim + kStepWarps * kStepColumns);
  return launch_kernel<norm_step_kernel>(s, device, heads, tiles, 32 * kStepWarps, shared_bytes, stream);
}

const char* block_step(const BlockStep& s, const Device& device, void* stream) {
  const int64_t heads = s.batch * s.heads;
  if (heads == 0 || s.dim == 0) return nullptr;
  const int64_t shared_bytes = shared_bytes_of(2 * s.dim + s.size);
  return launch_kernel<block_step_kernel>(s, device, heads, 1, 32 * kBlockWarps, shared_bytes, stream);
}

}  // namespace cla::cuda
