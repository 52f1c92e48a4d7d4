// Forward and backward as scans (see kernels.h), and the decoding step.
#include "forward_backward.h"

#include "threads.h"
#include "schedule.h"

namespace cla {
namespace {

Scan scan_of(const Problem& p, Operand a, Operand b, Operand c, Operand out, int64_t depth,
             int64_t width) {
  Scan s;
  s.batch = p.batch;
  s.heads = p.heads;
  s.rows = p.rows;
  s.sequences = p.offsets == nullptr ? p.batch : p.sequences;
  s.offsets = p.offsets;
  s.a = a;
  s.b = b;
  s.c = c;
  s.out = out;
  s.depth = depth;
  s.width = width;
  return s;
}

Operand plain(const Array& rows, Dtype dtype) {
  Operand x;
  x.rows = rows;
  x.dtype = dtype;
  return x;
}

// The state (depth, width + normalize) as the scan of q and v sees it, or transposed.
StateView state_view(const Problem& p, const void* data, bool transposed) {
  const int64_t columns = p.width + p.normalize;
  StateView view;
  view.data = const_cast<void*>(data);
  view.head = p.depth * columns;
  view.row = transposed ? 1 : columns;
  view.column = transposed ? columns : 1;
  view.z = p.width;
  view.z_row = columns;
  return view;
}

template <class T>
void forward_as(const Problem& p, const Outputs& o, const Threads& threads) {
  Scan s = scan_of(p, plain(p.q, p.dtype), plain(p.k, p.dtype), plain(p.v, p.dtype),
                   plain(o.out, p.dtype), p.depth, p.width);
  s.initial = state_view(p, p.state, false);
  s.final = state_view(p, o.state, false);
  s.normalize = p.normalize;
  s.eps = p.eps;
  s.inverse = o.inverse;
  run_scans<T>({&s, 1}, threads);
}

template <class T>
void backward_as(const Problem& p, const Gradients& g, const Threads& threads) {
  const T one = 1, zero = 0;
  const Operand q = plain(p.q, p.dtype), k = plain(p.k, p.dtype);
  Operand grads = plain(g.grad_out, p.dtype), values = plain(p.v, p.dtype);
  const int64_t inner = p.width + p.normalize;
  Buffer<T> slope;
  if (p.normalize) {
    slope = allocate<T>(p.batch * p.heads * p.rows);
    grads.scale = g.inverse;
    values.extra = &one;
    values.constant = true;
  }

  Operand wide_grads = grads;
  wide_grads.extra = p.normalize ? &zero : nullptr;
  wide_grads.constant = true;
  Scan for_q = scan_of(p, wide_grads, values, k, plain(g.q, p.dtype), inner, p.depth);
  for_q.initial = state_view(p, p.state, true);
  for_q.queries = q;
  for_q.inverse = const_cast<void*>(g.inverse);
  for_q.slope = slope.get();

  wide_grads.extra = slope.get();
  wide_grads.constant = false;
  Scan for_kv = scan_of(p, values, wide_grads, q, plain(g.k, p.dtype), inner, p.depth);
  for_kv.reverse = true;
  for_kv.initial = state_view(p, g.grad_state, true);
  for_kv.final = state_view(p, g.state, true);
  for_kv.pair = k;
  for_kv.pair_out = plain(g.v, p.dtype);
  for_kv.pair_width = p.width;
  const Scan both[] = {for_q, for_kv};
  run_scans<T>(both, threads);
}

}  // namespace

void forward(const Problem& p, const Outputs& outputs, const Threads& threads) {
  current_kernels();  // a wrong choice throws here, not on one of the threads
  (p.dtype == Dtype::f64 ? forward_as<double> : forward_as<float>)(p, outputs, threads);
}

void backward(const Problem& p, const Gradients& gradients, const Threads& threads) {
  current_kernels();
  (p.dtype == Dtype::f64 ? backward_as<double> : backward_as<float>)(p, gradients, threads);
}

void step(const Problem& p, void* out, void* state_out, const Threads& threads) {
  const int64_t element = bytes_of(p.dtype), wide = p.dtype == Dtype::f64 ? 8 : 4;
  const int64_t state = p.depth * (p.width + p.normalize) * wide;
  const int64_t heads = p.batch * p.heads;
  Threads used = threads;
  used.count = useful_threads(threads, 4 * heads * state / wide);
  const Kernels& kernels = current_kernels();
  for_tasks(heads, used, [&](auto next) {
    for (int64_t head = next(); head >= 0; head = next()) {
      Step s;
      s.q = static_cast<const char*>(p.q.data) + head * p.depth * element;
      s.k = static_cast<const char*>(p.k.data) + head * p.depth * element;
      s.v = static_cast<const char*>(p.v.data) + head * p.width * element;
      s.dtype = p.dtype;
      s.state = static_cast<const char*>(p.state) + head * state;
      s.state_out = static_cast<char*>(state_out) + head * state;
      s.out = static_cast<char*>(out) + head * p.width * element;
      s.depth = p.depth;
      s.width = p.width;
      s.normalize = p.normalize;
      s.eps = p.eps;
      (p.dtype == Dtype::f64 ? kernels.step_f64 : kernels.step_f32)(s);
    }
  });
}

}  // namespace cla
