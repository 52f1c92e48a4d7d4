// Forward and backward as scans (see kernels.h), and the decoding step.
#include "forward_backward.h"

#include <optional>
#include <vector>

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
  s.decay = p.decay;
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

// One that the heads of a group share.
StateView shared(const Problem& p, StateView view, bool once) {
  view.group = p.k.group;
  view.once = once;
  return view;
}

template <class T>
void forward_as(const Problem& p, const Outputs& o, const Threads& threads) {
  Scan s = scan_of(p, plain(p.q, p.dtype), plain(p.k, p.dtype), plain(p.v, p.dtype),
                   plain(o.out, p.dtype), p.depth, p.width);
  s.initial = shared(p, state_view(p, p.state, false), false);
  s.final = shared(p, state_view(p, o.state, false), true);
  s.normalize = p.normalize;
  s.eps = p.eps;
  s.inverse = o.inverse;
  s.factor = p.scale;
  run_scans<T>({&s, 1}, threads);
}

int64_t decay_offset(const Problem& p, int64_t batch, int64_t head, int64_t row) {
  return batch * p.decay.batch + head / p.decay.group * p.decay.head + row * p.decay.row;
}

// The sums for the gradient of the decays (see Segment), and that gradient.
template <class T>
struct DecaySums {
  std::vector<int64_t> first_block{0};
  Buffer<T> kept, products;

  // The state after the last block counts only where it has a gradient.
  DecaySums(const Problem& p, bool of_last, int64_t state) {
    const int64_t sequences = p.offsets == nullptr ? p.batch : p.sequences;
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t rows = p.offsets == nullptr ? p.rows : p.offsets[s + 1] - p.offsets[s];
      const int64_t blocks = rows == 0 ? 0 : (rows - 1) / kBlockRows + of_last;
      for (int64_t h = 0; h < p.heads; ++h) first_block.push_back(first_block.back() + blocks);
    }
    kept = allocate<T>(first_block.back() * state);
    products = allocate<T>(first_block.back());
  }

  void add_to(Scan& s, Operand dotted, void* dots) const {
    s.dotted = dotted;
    s.dots = dots;
    s.kept = kept.get();
    s.products = products.get();
    s.first_block = first_block.data();
  }

  // The sums of the rows' dots, in their place; 0 where a sequence begins, with which the sum of those after it is 0.
  void run(const Problem& p, void* dots) const {
    for (int64_t head = 0; head + 1 < static_cast<int64_t>(first_block.size()); ++head) {
      const int64_t sequence = head / p.heads, h = head % p.heads;
      const bool packed = p.offsets != nullptr;
      const int64_t first = packed ? p.offsets[sequence] : 0, batch = packed ? 0 : sequence;
      const int64_t rows = packed ? p.offsets[sequence + 1] - first : p.rows;
      T* const sums = static_cast<T*>(dots) + (batch * p.heads + h) * p.rows + first;
      const T* const factors =
          static_cast<const T*>(p.decay.data) + decay_offset(p, batch, h, first);
      const int64_t blocks = first_block[head + 1] - first_block[head];
      double sum = 0;
      for (int64_t i = rows; i-- > 0;) {
        if ((i + 1) % kBlockRows == 0 || i + 1 == rows) {
          const int64_t block = i / kBlockRows;
          sum = block < blocks ? static_cast<double>(products[first_block[head] + block]) : 0;
        }
        sum += static_cast<double>(sums[i]);
        if (factors[i * p.decay.row] == 0) sum = 0;
        sums[i] = static_cast<T>(sum);
      }
    }
  }
};

// The gradient of the state that enters the first row, from that of the state that the row's decay left.
template <class T>
void decay_first(const Problem& p, T* state) {
  const int64_t sequences = p.offsets == nullptr ? p.batch : p.sequences;
  const int64_t size = p.depth * (p.width + p.normalize);
  for (int64_t head = 0; head < sequences * p.heads; ++head) {
    const int64_t sequence = head / p.heads, h = head % p.heads;
    const bool packed = p.offsets != nullptr;
    const int64_t first = packed ? p.offsets[sequence] : 0, batch = packed ? 0 : sequence;
    if ((packed ? p.offsets[sequence + 1] - first : p.rows) == 0) continue;
    const T factor = static_cast<const T*>(p.decay.data)[decay_offset(p, batch, h, first)];
    for (int64_t x = 0; x < size; ++x) {
      T& number = state[head * size + x];
      number = factor == 0 ? T(0) : factor * number;
    }
  }
}

template <class T>
void backward_as(const Problem& p, const Gradients& g, const Threads& threads) {
  const T one = 1, zero = 0;
  const Operand q = plain(p.q, p.dtype), k = plain(p.k, p.dtype);
  Operand grads = plain(g.grad_out, p.dtype), values = plain(p.v, p.dtype);
  grads.factor = p.scale;
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
  for_q.initial = shared(p, state_view(p, p.state, true), false);
  for_q.queries = q;
  for_q.inverse = const_cast<void*>(g.inverse);
  for_q.slope = slope.get();

  wide_grads.extra = slope.get();
  wide_grads.constant = false;
  Scan for_kv = scan_of(p, values, wide_grads, q, plain(g.k, p.dtype), inner, p.depth);
  for_kv.reverse = true;
  for_kv.initial = shared(p, state_view(p, g.grad_state, true), true);
  for_kv.final = state_view(p, g.state, true);
  for_kv.pair = k;
  for_kv.pair_out = plain(g.v, p.dtype);
  for_kv.pair_width = p.width;
  const bool decayed = p.decay.data != nullptr;
  std::optional<DecaySums<T>> sums;
  if (decayed) {
    sums.emplace(p, g.grad_state != nullptr, state_size(inner, p.depth));
    sums->add_to(for_q, q, g.log_decay);
    sums->add_to(for_kv, k, g.log_decay);
  }
  const Scan both[] = {for_q, for_kv};
  run_scans<T>(both, threads);
  if (!decayed) return;
  sums->run(p, g.log_decay);
  if (g.state != nullptr) decay_first<T>(p, static_cast<T*>(g.state));
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
  const int64_t heads = p.heads / p.k.group, states = p.batch * heads;
  Threads used = threads;
  used.count = useful_threads(threads, 4 * p.batch * p.heads * state / wide);
  const Kernels& kernels = current_kernels();
  for_tasks(states, used, [&](auto next) {
    for (int64_t head = next(); head >= 0; head = next()) {
      Step s;
      s.k = static_cast<const char*>(p.k.data) + head * p.depth * element;
      s.v = static_cast<const char*>(p.v.data) + head * p.width * element;
      s.dtype = p.dtype;
      s.state = static_cast<const char*>(p.state) + head * state;
      s.state_out = static_cast<char*>(state_out) + head * state;
      s.depth = p.depth;
      s.width = p.width;
      s.normalize = p.normalize;
      s.eps = p.eps;
      s.scale = p.scale;
      if (p.decay.data != nullptr) {
        const int64_t at = head / heads * p.decay.batch + head % heads * p.decay.head;
        s.decay = static_cast<const char*>(p.decay.data) + at * wide;
      }
      for (int64_t query = head * p.k.group; query < (head + 1) * p.k.group; ++query) {
        s.q = static_cast<const char*>(p.q.data) + query * p.depth * element;
        s.out = static_cast<char*>(out) + query * p.width * element;
        (p.dtype == Dtype::f64 ? kernels.step_f64 : kernels.step_f32)(s);
        s.state = s.state_out;
        s.held = true;
      }
    }
  });
}

}  // namespace cla
