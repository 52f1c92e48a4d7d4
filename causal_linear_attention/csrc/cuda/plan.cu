#include "plan.h"

#include <initializer_list>

namespace cla::cuda {
namespace {

constexpr int64_t kFewestRows = 512;  // of a segment
constexpr int64_t kMostSegments = 64;
constexpr int kMostStages = 4, kEnoughStages = 2;

int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }

// The number of stages with which the most blocks share a multiprocessor, and of those the largest; one where
// copies are not asynchronous. Returns the number of those blocks, 0 if not even one stage fits.
int choose_stages(Plan& p, const Device& device) {
  int best = 0;
  for (int stages = device.capability >= 80 ? kMostStages : 1; stages >= 1; --stages) {
    if (best > 0 && stages < kEnoughStages) break;
    const int64_t bytes = p.kernel.fixed_bytes + stages * p.kernel.stage_bytes;
    if (bytes > device.shared_bytes) continue;
    const int blocks = p.kernel.blocks(device, stages, bytes);
    if (blocks <= best) continue;
    best = blocks;
    p.scans.stages = stages;
    p.shared_bytes = bytes;
  }
  return best;
}

// Rows that a block computes, or as many as take the same time: cut into segments, it reads b and c a second time,
// half as much again, and the sums of all segments before its own.
double cost(const Scans& s, int64_t segments) {
  const double rows = static_cast<double>(ceil_div(s.length, segments));
  const double rows_of_a_state = 0.5 * s.scan[0].width;
  return segments > 1 ? 1.5 * rows + static_cast<double>(segments - 1) * rows_of_a_state : rows;
}

// As many segments as run at once, one wave of blocks, or fewer: more blocks than places wait for no less.
void choose_segments(Plan& p, int64_t places) {
  Scans& s = p.scans;
  const int64_t blocks = int64_t{s.heads} * s.count;
  int64_t most = blocks > 0 ? places / blocks : 1, best = 1;
  for (const int64_t limit : {s.length / kFewestRows, kMostSegments}) most = most < limit ? most : limit;
  for (int64_t x = 2; x <= most; ++x) {
    if (cost(s, x) < cost(s, best)) best = x;
  }
  s.segment_rows = static_cast<int>(ceil_div(ceil_div(s.length, best), p.kernel.chunk) * p.kernel.chunk);
  s.segments = s.length > 0 ? static_cast<int>(ceil_div(s.length, s.segment_rows)) : 1;
}

}  // namespace

Plan plan(const Scans& scans, const Kernel& kernel, const Device& device) {
  Plan p;
  p.kernel = kernel;
  p.scans = scans;
  const int blocks = choose_stages(p, device);
  if (blocks == 0) return p;
  p.fits = true;
  choose_segments(p, static_cast<int64_t>(blocks) * device.multiprocessors);
  if (p.scans.segments > 1) p.sums = int64_t{scans.count} * scans.heads * p.scans.segments * kernel.sums;
  return p;
}

const char* launch(Plan p, const Device& device, float* sums, void* stream) {
  if (!p.fits) return kTooLarge;
  if (p.scans.heads == 0) return nullptr;
  if (p.scans.segments > 1) {
    for (int x = 0; x < p.scans.count; ++x) p.scans.scan[x].sums = sums + x * (p.sums / p.scans.count);
    if (const char* const error = p.kernel.launch(p.scans, device, p.shared_bytes, true, stream)) return error;
  }
  return p.kernel.launch(p.scans, device, p.shared_bytes, false, stream);
}

Rows rows_of(const Problem& p, const Array& x, int64_t columns, bool reverse) {
  const int64_t size = bytes_of(p.dtype), last = reverse && p.rows > 0 ? p.rows - 1 : 0;
  Rows rows;
  rows.data = static_cast<char*>(x.data) + last * x.row * size;
  rows.batch = x.batch * size;
  rows.head = x.head * size;
  rows.row = (reverse ? -x.row : x.row) * size;
  rows.columns = static_cast<int>(columns);
  rows.aligned = true;
  for (const int64_t bytes : {static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.data)), rows.batch, rows.head,
                              rows.row, columns * size}) {
    rows.aligned = rows.aligned && bytes % 16 == 0;
  }
  return rows;
}

// For a scan whose c has the state's rows (gradients of q and k), or its columns.
State state_of(const Problem& p, const void* data, bool transposed) {
  State state;
  const int columns = static_cast<int>(p.width) + p.normalize;
  state.data = static_cast<float*>(const_cast<void*>(data));
  state.head = p.depth * columns;
  state.row = transposed ? 1 : columns;
  state.column = transposed ? columns : 1;
  state.vector = static_cast<int>(p.width);
  state.vector_step = columns;
  return state;
}

Scans scans_of(const Problem& p) {
  Scans s;
  s.heads = static_cast<int>(p.batch * p.heads);
  s.heads_of_a_batch = p.heads > 0 ? static_cast<int>(p.heads) : 1;
  s.length = static_cast<int>(p.rows);
  s.eps = static_cast<float>(p.eps);
  return s;
}

}  // namespace cla::cuda
