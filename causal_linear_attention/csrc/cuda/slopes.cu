// The slopes of a normaliser's gradients, of wide heads: slope[i] = -(out[i] . grad_out[i]) inverse[i].
#include "launch.cuh"

namespace cla::cuda {
namespace {

constexpr int kRowsOfBlock = 8;  // a warp for each

struct SlopesLaunch {
  Rows out, grad;
  int heads_of_a_batch = 1, length = 0;
  int64_t rows = 0;  // of all heads
  const float* inverse = nullptr;
  float* slopes = nullptr;
};

template <class In>
CLA_KERNEL(32 * kRowsOfBlock, 1)
slopes_kernel(CLA_PARAMETER SlopesLaunch s) {
  const int64_t which = int64_t{block_index()} * kRowsOfBlock + warp_index();
  const bool inside = which < s.rows;
  const int64_t head = inside ? which / s.length : 0, row = inside ? which % s.length : 0;
  const int64_t batch = head / s.heads_of_a_batch, of_batch = head % s.heads_of_a_batch;
  auto row_of = [&](const Rows& rows) {
    return reinterpret_cast<const In*>(rows.data + batch * rows.batch + of_batch * rows.head + row * rows.row);
  };
  const In *const out = row_of(s.out), *const grad = row_of(s.grad);
  float total = 0.0f;
  for (int column = lane_index(); inside && column < s.out.columns; column += 32) {
    total += number(out[column]) * number(grad[column]);
  }
  sync_warp();
  total = sum_of_lanes(total);
  if (inside && lane_index() == 0) s.slopes[which] = -total * s.inverse[which];
}

}  // namespace

const char* write_slopes(const Problem& p, const Gradients& g, float* slopes, const Device& device, void* stream) {
  SlopesLaunch s;
  s.out = rows_of(p, g.out, p.width);
  s.grad = rows_of(p, g.grad_out, p.width);
  s.heads_of_a_batch = static_cast<int>(p.heads);
  s.length = static_cast<int>(p.rows);
  s.rows = p.batch * p.heads * p.rows;
  s.inverse = static_cast<const float*>(g.inverse);
  s.slopes = slopes;
  if (s.rows == 0) return nullptr;
  return with_type(p.dtype, [&](auto x) {
    const int64_t blocks = (s.rows + kRowsOfBlock - 1) / kRowsOfBlock;
    return launch_kernel<slopes_kernel<decltype(x)>>(s, device, blocks, 1, 32 * kRowsOfBlock, 0, stream);
  });
}

}  // namespace cla::cuda
