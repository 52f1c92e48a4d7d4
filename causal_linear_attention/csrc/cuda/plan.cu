#include "plan.h"

#include <algorithm>
#include <initializer_list>

namespace cla::cuda {
namespace {

constexpr int64_t kWaves = 16;
constexpr int kEnoughStages = 2;

int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }

// The number of stages with which the most blocks share a multiprocessor, and of those the largest; one where
// copies are not asynchronous. Returns the number of those blocks, 0 if not even one stage fits.
int choose_stages(Launch& s, Plan& p, const Needs& needs, const Device& device) {
  int best = 0;
  for (int stages = device.capability >= 80 ? kMaxStages : 1; stages >= 1; --stages) {
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

// How long so many equally long blocks take, in their rows. A multiprocessor works through rows at one speed, whether it
// holds two blocks or as many as fit, with a single one at four fifths of it; where only some hold one block more, these
// have more of the memory's bandwidth. Measured on an H100.
double rows_of_time(int64_t count, int64_t blocks, int64_t multiprocessors) {
  const int64_t places = blocks * multiprocessors, last = count % places;
  const double even = static_cast<double>(last) / static_cast<double>(multiprocessors);
  const double wave = std::max({1.25, 0.8 * static_cast<double>(ceil_div(last, multiprocessors)), even});
  return static_cast<double>(count / places * blocks) + (last > 0 ? wave : 0.0);
}

// Cuts the heads into segments where that takes less time. Whole heads may leave multiprocessors idle; segments fill
// them evenly, but a block reads some arrays twice and waits for the state of those before, the later of the first wave
// for the sums of many. They begin where a state is kept; there are at most kWaves waves of them, which bounds scratch
// memory, and no more than needed. Packed sequences are not cut: their lengths are on the GPU.
void choose_segments(Launch& s, const Needs& needs, int64_t blocks, int64_t multiprocessors) {
  s.segment_rows = s.length;
  if (s.heads == 0 || s.length == 0 || multiprocessors == 0 || s.bounds != nullptr) return;
  const int64_t units = ceil_div(s.length, s.kept_rows), at_once = ceil_div(blocks * multiprocessors, s.heads);
  double least = rows_of_time(s.heads, blocks, multiprocessors) * s.length;
  for (int64_t step = 0; step < 2 + kWaves * blocks; ++step) {
    // Blocks for a quarter and half of the multiprocessors, then one, two and so on for each.
    const int64_t count = step < 2 ? multiprocessors >> (2 - step) : (step - 1) * multiprocessors;
    const int64_t wanted = std::min(count / s.heads, units);
    if (wanted < 2) continue;
    const int64_t rows = s.kept_rows * ceil_div(units, wanted), segments = ceil_div(s.length, rows);
    const double waiting = 0.5 * s.inputs[kV].columns * static_cast<double>(std::min(segments, at_once));
    const double time =
        needs.cut * static_cast<double>(rows) * rows_of_time(s.heads * segments, blocks, multiprocessors) + waiting;
    if (time < 0.999 * least) {
      least = time;
      s.segments = static_cast<int>(segments);
      s.segment_rows = static_cast<int>(rows);
    }
    if (wanted == units) return;
  }
}

}  // namespace

Plan plan(Launch& s, const Needs& needs, const Device& device) {
  Plan p;
  const int blocks = choose_stages(s, p, needs, device);
  if (blocks == 0) return p;
  p.fits = true;
  choose_segments(s, needs, blocks, device.multiprocessors);
  if (s.segments > 1) {
    const int64_t count = int64_t{s.heads} * s.segments;
    p.tickets = ceil_div(1 + count, 32) * 32;  // sums begin at a multiple of 128 bytes
    p.sums = 2 * count * needs.sums;
  }
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
  rows.group = static_cast<int>(x.group);
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

State shared(const Problem& p, State state, bool once) {
  state.group = static_cast<int>(p.k.group);
  state.once = once;
  return state;
}

void fill(Launch& s, const Problem& p, const void* inverse, void* kept, bool backward) {
  s.inputs[kK] = rows_of(p, p.k, p.depth);
  s.inputs[kV] = rows_of(p, p.v, p.width);
  s.inputs[kQ] = rows_of(p, p.q, p.depth);
  s.heads = static_cast<int>((p.offsets != nullptr ? p.sequences : p.batch) * p.heads);
  s.bounds = p.offsets;
  s.heads_of_a_batch = p.heads > 0 ? static_cast<int>(p.heads) : 1;
  s.length = static_cast<int>(p.rows);
  s.initial = shared(p, state_of(p, p.state, backward), false);
  s.kept = shared(p, state_of(p, kept_states(p) > 0 ? kept : nullptr, backward), true);
  s.kept_rows = static_cast<int>(kept_rows(p));
  s.kept_size = static_cast<int>(s.kept.head);
  s.kept.head *= kept_states(p);
  s.inverse = static_cast<float*>(const_cast<void*>(inverse));
  s.decay = {static_cast<char*>(p.decay.data), 4 * p.decay.batch, 4 * p.decay.head, 4 * p.decay.row};
  s.decay.group = static_cast<int>(p.decay.group);
}

void share_out(Launch& s, int parts) {
  s.parts = parts;
  s.heads *= parts;
}

}  // namespace cla::cuda
