// Forward and backward as sweeps.
#include "attention.h"

#include "sweep.h"

namespace cla_cuda {
namespace {

constexpr int kMaxColumnsOfTwoParts = 64;
const char* const kTooLarge = "the heads do not fit this GPU's shared memory";

Rows rows_of(const Problem& p, const Array& x, int columns, bool reverse) {
  const int64_t size = p.dtype == Dtype::f32 ? 4 : 2, last = reverse && p.rows > 0 ? p.rows - 1 : 0;
  Rows rows;
  rows.data = static_cast<char*>(x.data) + last * x.row * size;
  rows.batch = x.batch;
  rows.head = x.head;
  rows.row = reverse ? -x.row : x.row;
  rows.columns = columns;
  const auto misaligned = reinterpret_cast<uintptr_t>(x.data) % 16 + x.batch * size % 16 + x.head * size % 16 +
                          x.row * size % 16 + columns * size % 16;
  rows.aligned = misaligned == 0;
  return rows;
}

// The state as a sweep sees it whose c has the state's rows (gradients of q and k), or its columns.
State state_of(const Problem& p, float* data, bool transposed) {
  State state;
  const int columns = p.width + p.normalize;
  state.data = data;
  state.head = static_cast<int64_t>(p.depth) * columns;
  state.row = transposed ? 1 : columns;
  state.column = transposed ? columns : 1;
  state.vector = p.width;
  return state;
}

Sweep sweep_of(const Problem& p, Normaliser normaliser) {
  Sweep s;
  s.heads = p.batch * p.heads;
  s.heads_of_a_batch = p.heads > 0 ? p.heads : 1;
  s.length = p.rows;
  s.dtype = p.dtype;
  s.normaliser = p.normalize ? normaliser : Normaliser::none;
  s.eps = p.eps;
  return s;
}

Sweep forward_sweep(const Problem& p, const Outputs& o) {
  Sweep s = sweep_of(p, Normaliser::forward);
  s.tiles = 3;
  s.rows[0] = rows_of(p, p.q, p.depth, false);
  s.rows[1] = rows_of(p, p.k, p.depth, false);
  s.rows[2] = rows_of(p, p.v, p.width, false);
  s.weights = o.inverse;
  Part& part = s.parts[0];
  part.b = 1;
  part.c = 2;
  part.depth = p.depth;
  part.width = p.width + p.normalize;
  part.out = rows_of(p, o.out, p.width, false);
  part.initial = state_of(p, p.state, false);
  part.final = state_of(p, o.state, false);
  return s;
}

// Writes the slopes that the other gradients read.
Sweep query_sweep(const Problem& p, const Gradients& g, float* slopes) {
  Sweep s = sweep_of(p, Normaliser::queries);
  s.tiles = 3;
  s.rows[0] = rows_of(p, g.grad_out, p.width, false);
  s.rows[1] = rows_of(p, p.v, p.width, false);
  s.rows[2] = rows_of(p, p.k, p.depth, false);
  s.queries = rows_of(p, p.q, p.depth, false);
  s.weights = g.inverse;
  s.slopes = slopes;
  Part& part = s.parts[0];
  part.b = 1;
  part.c = 2;
  part.depth = p.width;
  part.width = p.depth;
  part.vector = p.normalize;
  part.out = rows_of(p, g.q, p.depth, false);
  part.initial = state_of(p, p.state, true);
  return s;
}

// Gradients of v (first part) and k (second part), from the last row to the first.
Sweep value_sweep(const Problem& p, const Gradients& g, float* slopes) {
  Sweep s = sweep_of(p, Normaliser::values);
  s.reverse = true;
  s.tiles = 4;
  s.rows[0] = rows_of(p, p.k, p.depth, true);
  s.rows[1] = rows_of(p, p.q, p.depth, true);
  s.rows[2] = rows_of(p, g.grad_out, p.width, true);
  s.rows[3] = rows_of(p, p.v, p.width, true);
  s.weights = g.inverse;
  s.slopes = slopes;
  s.part_count = 2;
  Part &values = s.parts[0], &keys = s.parts[1];
  values.b = 1;
  values.c = 2;
  values.depth = p.depth;
  values.width = p.width;
  values.out = rows_of(p, g.v, p.width, true);
  values.initial = state_of(p, g.grad_state, false);
  keys.a = 3;
  keys.b = 2;
  keys.c = 1;
  keys.depth = p.width;
  keys.width = p.depth;
  keys.vector = p.normalize;
  keys.out = rows_of(p, g.k, p.depth, true);
  keys.initial = state_of(p, g.grad_state, true);
  keys.final = state_of(p, g.state, true);
  return s;
}

// One of the two parts alone, with the three arrays it reads.
Sweep only(const Sweep& both, int part) {
  Sweep s = both;
  s.part_count = 1;
  s.tiles = 3;
  Part& p = s.parts[0] = both.parts[part];
  s.rows[0] = both.rows[p.a];
  s.rows[1] = both.rows[p.b];
  s.rows[2] = both.rows[p.c];
  p.a = 0;
  p.b = 1;
  p.c = 2;
  return s;
}

// The gradients' launches: two where both parts of the second fit one block, else three.
struct Backward {
  Sweep sweeps[3];
  int count = 0;
  int64_t sums = 0;
  bool fits = true;

  void add(Sweep s, const Device& device) {
    fits = plan(s, device) && fits;
    sums = sums_size(s) > sums ? sums_size(s) : sums;
    sweeps[count++] = s;
  }
};

Backward backward_plan(const Problem& p, const Gradients& g, const Device& device, float* slopes) {
  Backward b;
  b.add(query_sweep(p, g, slopes), device);
  Sweep both = value_sweep(p, g, slopes);
  const int columns = p.depth > p.width ? p.depth : p.width;
  if (columns <= kMaxColumnsOfTwoParts && plan(both, device) && (both.stages > 1 || device.capability < 80)) {
    b.add(both, device);
  } else {
    b.add(only(both, 0), device);
    b.add(only(both, 1), device);
  }
  return b;
}

int64_t slopes_size(const Problem& p) { return p.normalize ? p.batch * p.heads * p.rows : 0; }

}  // namespace

int64_t forward_scratch(const Problem& p, const Device& device) {
  Sweep s = forward_sweep(p, Outputs{});
  return plan(s, device) ? sums_size(s) : 0;
}

int64_t backward_scratch(const Problem& p, const Device& device) {
  return slopes_size(p) + backward_plan(p, Gradients{}, device, nullptr).sums;
}

const char* forward(const Problem& p, const Outputs& o, const Device& device, float* scratch, void* stream) {
  Sweep s = forward_sweep(p, o);
  return plan(s, device) ? launch(s, device, scratch, stream) : kTooLarge;
}

const char* backward(const Problem& p, const Gradients& g, const Device& device, float* scratch,
                     void* stream) {
  const Backward b = backward_plan(p, g, device, scratch);
  if (!b.fits) return kTooLarge;
  for (int x = 0; x < b.count; ++x) {
    const char* const error = launch(b.sweeps[x], device, scratch + slopes_size(p), stream);
    if (error != nullptr) return error;
  }
  return nullptr;
}

}  // namespace cla_cuda
