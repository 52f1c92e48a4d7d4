// RMSNorm and its derivative, a warp for each row.
#include "decoding.h"

#include "mma.cuh"

namespace cla::cuda {
namespace {

constexpr int kRowsOfBlock = 8;

// visit(the column) for this lane's columns of a row.
template <class Visit>
CLA_DEVICE void for_columns(int64_t width, const Visit& visit) {
#pragma unroll 4
  for (int64_t column = lane_index(); column < width; column += 32) visit(column);
}

CLA_DEVICE int64_t row_of_warp() { return int64_t{block_index()} * kRowsOfBlock + warp_index(); }

template <class In>
CLA_KERNEL(32 * kRowsOfBlock, 1)
rms_norm_kernel(CLA_PARAMETER RmsNorm s) {
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const In* const x = static_cast<const In*>(s.x) + row * s.width;
  In* const out = static_cast<In*>(s.out) + row * s.width;
  float share = 0.0f;
  for_columns(s.width, [&](int64_t i) { share += number(x[i]) * number(x[i]); });
  sync_warp();
  const float root = square_root(sum_of_lanes(share) / static_cast<float>(s.width));
  const float scale = root + static_cast<float>(s.eps);
  for_columns(s.width, [&](int64_t i) { store(number(x[i]) / scale, out + i); });
  if (lane_index() == 0) s.root[row] = root;
}

// (g - y mean(y g) (r + eps) / r) / (r + eps) for the output y and its gradient g.
template <class In>
CLA_KERNEL(32 * kRowsOfBlock, 1)
rms_norm_backward_kernel(CLA_PARAMETER RmsNormGradient s) {
  const int64_t row = row_of_warp();
  if (row >= s.rows) return;
  const In* const grad = static_cast<const In*>(s.grad) + row * s.width;
  const In* const out = static_cast<const In*>(s.out) + row * s.width;
  In* const grad_x = static_cast<In*>(s.grad_x) + row * s.width;
  const float root = s.root[row], scale = root + static_cast<float>(s.eps);
  const bool nothing = kNarrow<In> && root == 0.0f;
  float share = 0.0f;
  for_columns(s.width, [&](int64_t i) { share += number(out[i]) * number(grad[i]); });
  sync_warp();
  const float mean = sum_of_lanes(share) / static_cast<float>(s.width);
  const float along = root > 0.0f ? mean * (scale / root) : 0.0f;
  for_columns(s.width, [&](int64_t i) {
    store(nothing ? 0.0f : (number(grad[i]) - number(out[i]) * along) / scale, grad_x + i);
  });
}

}  // namespace

const char* rms_norm(const RmsNorm& s, const Device& device, void* stream) {
  if (s.rows == 0 || s.width == 0) return nullptr;
  const int64_t blocks = (s.rows + kRowsOfBlock - 1) / kRowsOfBlock;
  return with_type(s.dtype, [&](auto x) {
    return launch_kernel<rms_norm_kernel<decltype(x)>>(s, device, blocks, 1, 32 * kRowsOfBlock, 0, stream);
  });
}

const char* rms_norm_backward(const RmsNormGradient& s, const Device& device, void* stream) {
  if (s.rows == 0 || s.width == 0) return nullptr;
  const int64_t blocks = (s.rows + kRowsOfBlock - 1) / kRowsOfBlock;
  return with_type(s.dtype, [&](auto x) {
    return launch_kernel<rms_norm_backward_kernel<decltype(x)>>(s, device, blocks, 1, 32 * kRowsOfBlock, 0, stream);
  });
}

}  // namespace cla::cuda
