#include "plan.h"

#include <initializer_list>

namespace cla::cuda {
namespace {

constexpr int64_t kMostSegments = 64;
constexpr int kMostStages = 4, kEnoughStages = 2;

int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }

// The number of stages with which the most blocks share a multiprocessor, and of those the largest; one where
// copies are not asynchronous. Returns the number of those blocks, 0 if not even one stage fits.
int choose_stages(Launch& s, Plan& p, const Needs& needs, const Device& device) {
  int best = 0;
  for (int stages = device.capability >= 80 ? kMostStages : 1; stages >= 1; --stages) {
    if (best > 0 && stages < kEnoughStages) break;
    const int64_t bytes = needs.fixed_bytes + stages * needs.stage_bytes;
    if (bytes > device.shared_bytes) continue;
    const int blocks = needs.blocks(device, stages, bytes);
    if (blocks <= best) continue;
    best = blocks;
    s.stages = stages;
    p.shared_bytes = bytes;
  }
  return best;
}

// Rows that a block computes, or as many as take the same time: cut into segments, it reads some arrays a second
// time, half as much again, and the sums of all segments before its own.
double cost(const Launch& s, int64_t segments, int64_t rows) {
  const double rows_of_a_state = 0.5 * s.inputs[kV].columns;
  return segments > 1 ? 1.5 * static_cast<double>(rows) + static_cast<double>(segments - 1) * rows_of_a_state
                      : static_cast<double>(rows);
}

// As many segments as run at once, one wave of blocks, or fewer: more blocks than places wait for no less. They
// begin where a state is kept.
void choose_segments(Launch& s, int64_t places) {
  const int64_t units = ceil_div(s.length, s.kept_rows);
  int64_t most = s.heads > 0 ? places / s.heads : 1;
  most = most < kMostSegments ? most : kMostSegments;
  s.segment_rows = s.length;
  double least = cost(s, 1, s.length);
  for (int64_t wanted = 2; wanted <= most && wanted <= units; ++wanted) {
    const int64_t rows = ceil_div(units, wanted) * s.kept_rows, segments = ceil_div(s.length, rows);
    if (const double found = cost(s, segments, rows); found < least) {
      least = found;
      s.segments = static_cast<int>(segments);
      s.segment_rows = static_cast<int>(rows);
    }
  }
}

}  // namespace

Plan plan(Launch& s, const Needs& needs, const Device& device) {
  Plan p;
  const int blocks = choose_stages(s, p, needs, device);
  if (blocks == 0) return p;
  p.fits = true;
  choose_segments(s, static_cast<int64_t>(blocks) * device.multiprocessors);
  if (s.segments > 1) p.sums = int64_t{s.heads} * s.segments * needs.sums;
  return p;
}

Rows rows_of(const Problem& p, const Array& x, int64_t columns) {
  const int64_t size = bytes_of(p.dtype);
  Rows rows;
  rows.data = static_cast<char*>(x.data);
  rows.batch = x.batch * size;
  rows.head = x.head * size;
  rows.row = x.row * size;
  rows.columns = static_cast<int>(columns);
  rows.aligned = true;
  for (const int64_t bytes : {static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.data)), rows.batch, rows.head,
                              rows.row, columns * size}) {
    rows.aligned = rows.aligned && bytes % 16 == 0;
  }
  return rows;
}

State state_of(const Problem& p, const void* data, bool backward) {
  State state;
  const int depth = static_cast<int>(p.depth), width = static_cast<int>(p.width), columns = width + p.normalize;
  state.data = static_cast<float*>(const_cast<void*>(data));
  state.head = p.depth * columns;
  state.own = backward ? depth : width;
  state.own_step = backward ? columns : 1;
  state.other = backward ? width : depth;
  state.other_step = backward ? 1 : columns;
  state.vector = width;
  state.vector_step = columns;
  state.vector_size = p.normalize ? depth : 0;
  return state;
}

void fill(Launch& s, const Problem& p, const void* inverse, void* kept, bool backward) {
  s.inputs[kK] = rows_of(p, p.k, p.depth);
  s.inputs[kV] = rows_of(p, p.v, p.width);
  s.inputs[kQ] = rows_of(p, p.q, p.depth);
  s.heads = static_cast<int>(p.batch * p.heads);
  s.heads_of_a_batch = p.heads > 0 ? static_cast<int>(p.heads) : 1;
  s.length = static_cast<int>(p.rows);
  s.initial = state_of(p, p.state, backward);
  s.kept = state_of(p, kept, backward);
  s.kept_rows = static_cast<int>(kept_rows(p));
  s.kept_size = static_cast<int>(s.kept.head);
  s.kept.head *= kept_states(p);
  s.inverse = static_cast<float*>(const_cast<void*>(inverse));
}

}  // namespace cla::cuda
