// Cuts a sweep into segments and spreads heads and segments over threads.
//
// The length of a segment depends on the number of rows alone. The state that enters segment s + 1 is the
// one that enters segment s plus the sum of segment s, whoever computes that sum: one thread on its way
// through the head, or, when there are fewer heads than threads, another thread in a pass of its own. So
// the results have the same bits whatever the number of threads.
#include "driver.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace cla {
namespace {

constexpr int64_t kMaxSegments = 24;
constexpr int64_t kStreamingBytes = int64_t{1} << 24;
constexpr int64_t kOperationsOfAThread = 2'000'000;  // some ten microseconds: less is not worth waking one

int64_t segment_rows(int64_t rows) {
  const int64_t length = round_up((rows + kMaxSegments - 1) / kMaxSegments, kChunk);
  return length < 4 * kChunk ? 4 * kChunk : length;
}

template <class T>
struct Free {
  void operator()(T* p) const { std::free(p); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Free<T>>;

template <class T>
Buffer<T> allocate(int64_t count) {
  void* const p = std::aligned_alloc(64, static_cast<size_t>(round_up(count * sizeof(T), 64)) + 64);
  if (p == nullptr) throw std::bad_alloc();
  return Buffer<T>(static_cast<T*>(p));
}

template <class T>
void run_segment(const Segment& s, const T* base, T* sums, T* workspace) {
  if constexpr (sizeof(T) == 8) {
    current_kernels().segment_f64(s, base, sums, workspace);
  } else {
    current_kernels().segment_f32(s, base, sums, workspace);
  }
}

// --- one sweep over all heads ------------------------------------------------------------------------

struct Operand {
  Array rows;
  Dtype dtype = Dtype::f32;
  const void* scale = nullptr;  // (batch, heads, rows) of the accumulation type
  const void* extra = nullptr;  // the same, or one number for all rows if `constant`
  bool constant = false;
};

// A state in memory: element (row, column) of head h is data[h * head + row * row_stride + column * ...].
struct StateView {
  void* data = nullptr;
  int64_t head = 0, row = 0, column = 0;
  int64_t z = 0;      // offset and stride of the normaliser's vector (forward only)
  int64_t z_row = 0;
};

struct Sweep {
  int64_t batch = 0, heads = 0, rows = 0, depth = 0, width = 0;
  Operand a, b, c, out;
  StateView initial, final;
  bool reverse = false;
  bool normalize = false;
  double eps = 0.0;
  void* inverse = nullptr;
  Operand queries;
  void* slope = nullptr;
};

int64_t bytes_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

char* row_pointer(const Array& array, Dtype dtype, int64_t b, int64_t h, int64_t row) {
  return static_cast<char*>(array.data) +
         (b * array.batch + h * array.head + row * array.row) * bytes_of(dtype);
}

template <class T>
Rows rows_of(const Sweep& s, const Operand& x, int64_t b, int64_t h) {
  Rows rows;
  const int64_t first = s.reverse && s.rows > 0 ? s.rows - 1 : 0, direction = s.reverse ? -1 : 1;
  const int64_t at = (b * s.heads + h) * s.rows + first;
  rows.data = row_pointer(x.rows, x.dtype, b, h, first);
  rows.stride = direction * x.rows.row;
  rows.dtype = x.dtype;
  if (x.scale != nullptr) rows.scale = static_cast<const T*>(x.scale) + at;
  rows.scale_stride = direction;
  if (x.extra != nullptr) rows.extra = static_cast<const T*>(x.extra) + (x.constant ? 0 : at);
  rows.extra_stride = x.constant ? 0 : direction;
  return rows;
}

template <class T>
Segment segment_of(const Sweep& s, int64_t head) {
  const int64_t b = head / s.heads, h = head % s.heads;
  Segment segment;
  segment.a = rows_of<T>(s, s.a, b, h);
  segment.b = rows_of<T>(s, s.b, b, h);
  segment.c = rows_of<T>(s, s.c, b, h);
  const Rows out = rows_of<T>(s, s.out, b, h);
  segment.out = const_cast<void*>(out.data);
  segment.out_stride = out.stride;
  segment.out_dtype = out.dtype;
  segment.depth = s.depth;
  segment.width = s.width;
  segment.rows = s.rows;
  segment.normalize = s.normalize;
  segment.eps = s.eps;
  if (s.inverse != nullptr) segment.inverse = static_cast<T*>(s.inverse) + head * s.rows;
  if (s.slope != nullptr) {
    segment.queries = rows_of<T>(s, s.queries, b, h);
    segment.slope = static_cast<T*>(s.slope) + head * s.rows;
  }
  const int64_t bytes = s.batch * s.heads * s.rows * s.width * static_cast<int64_t>(sizeof(T));
  const auto address = reinterpret_cast<uintptr_t>(out.data);
  segment.streaming = bytes >= kStreamingBytes && out.dtype != Dtype::bf16 && out.dtype != Dtype::f16 &&
                      address % 64 == 0 && (out.stride * static_cast<int64_t>(sizeof(T))) % 64 == 0;
  return segment;
}

template <class T>
void read_state(const Sweep& s, int64_t head, T* to) {
  std::memset(to, 0, static_cast<size_t>(state_size(s.depth, s.width)) * sizeof(T));
  if (s.initial.data == nullptr) return;
  const T* const from = static_cast<const T*>(s.initial.data) + head * s.initial.head;
  for (int64_t e = 0; e < s.depth; ++e) {
    for (int64_t m = 0; m < s.width; ++m) {
      to[e * pitch(s.width) + m] = from[e * s.initial.row + m * s.initial.column];
    }
    if (s.normalize) {
      to[padded_depth(s.depth) * pitch(s.width) + e] = from[s.initial.z + e * s.initial.z_row];
    }
  }
}

template <class T>
void write_state(const Sweep& s, int64_t head, const T* from) {
  if (s.final.data == nullptr) return;
  T* const to = static_cast<T*>(s.final.data) + head * s.final.head;
  for (int64_t e = 0; e < s.depth; ++e) {
    for (int64_t m = 0; m < s.width; ++m) {
      to[e * s.final.row + m * s.final.column] = from[e * pitch(s.width) + m];
    }
    if (s.normalize) {
      to[s.final.z + e * s.final.z_row] = from[padded_depth(s.depth) * pitch(s.width) + e];
    }
  }
}

// What one thread works with: the state that enters a segment, the segment's sum, the kernel's scratch.
template <class T>
struct Scratch {
  int64_t state;
  Buffer<T> memory;
  explicit Scratch(const Sweep& s)
      : state(state_size(s.depth, s.width)),
        memory(allocate<T>(2 * state + workspace_size(s.depth, s.width))) {}
  T* base() const { return memory.get(); }
  T* sums() const { return memory.get() + state; }
  T* workspace() const { return memory.get() + 2 * state; }
  void advance() const {
    for (int64_t x = 0; x < state; ++x) base()[x] += sums()[x];
  }
};

// Rows [segment first, segment last) of a head, whose entering state is scratch.base().
template <class T>
void walk(Segment segment, int64_t length, int64_t first, int64_t last, const Scratch<T>& scratch) {
  for (int64_t s = first; s < last; ++s) {
    segment.begin = s * length;
    segment.end = segment.begin + length < segment.rows ? segment.begin + length : segment.rows;
    run_segment<T>(segment, scratch.base(), scratch.sums(), scratch.workspace());
    scratch.advance();
  }
}

// Hands tasks [0, count) out to the threads, one at a time.
template <class Body>
void for_tasks(int64_t count, const Threads& threads, const Body& body) {
  struct Context {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    int64_t count;
    const Body* body;
  } context;
  context.count = count;
  context.body = &body;
  auto work = [](int64_t, int64_t, void* opaque) {
    Context& c = *static_cast<Context*>(opaque);
    try {
      (*c.body)([&c]() -> int64_t {
        const int64_t task = c.next.fetch_add(1);
        return task < c.count && !c.failed ? task : -1;
      });
    } catch (const std::bad_alloc&) {
      c.failed = true;
    }
  };
  const int64_t workers = threads.count < count ? threads.count : count;
  if (workers <= 1 || threads.run == nullptr) {
    work(0, 1, &context);
  } else {
    threads.run(workers, work, &context);
  }
  if (context.failed) throw std::bad_alloc();
}

template <class T>
void sweep_by_heads(const Sweep& s, int64_t length, int64_t segments, const Threads& threads) {
  for_tasks(s.batch * s.heads, threads, [&](auto next) {
    const Scratch<T> scratch(s);
    for (int64_t head = next(); head >= 0; head = next()) {
      read_state(s, head, scratch.base());
      walk(segment_of<T>(s, head), length, 0, segments, scratch);
      write_state(s, head, scratch.base());
    }
  });
}

// Fewer heads than threads: each head is cut into `parts` + 1 stretches. First pass: the first stretch is
// computed, of the others but the last only the sums of their segments. Second pass: all the others.
// A sum costs about 0.4 of a full computation, so the first stretch is 0.4 of the others.
template <class T>
void sweep_by_stretches(const Sweep& s, int64_t length, int64_t segments, int64_t parts,
                        const Threads& threads) {
  const int64_t heads = s.batch * s.heads, size = state_size(s.depth, s.width);
  auto boundary = [&](int64_t part) -> int64_t {  // first segment of stretch `part`, 0 <= part <= parts + 1
    if (part == 0) return 0;
    const double unit = static_cast<double>(segments) / (0.4 + static_cast<double>(parts));
    const auto at = static_cast<int64_t>(unit * (0.4 + static_cast<double>(part - 1)) + 0.5);
    return part == parts + 1 || at > segments ? segments : at;
  };
  const int64_t summed = boundary(parts);  // segments from here on need no sum of their own
  const Buffer<T> sums = allocate<T>(heads * (summed > 0 ? summed : 1) * size);
  const Buffer<T> bases = allocate<T>(heads * (parts + 1) * size);
  for_tasks(heads * parts, threads, [&](auto next) {
    const Scratch<T> scratch(s);
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t head = task / parts, part = task % parts;
      Segment segment = segment_of<T>(s, head);
      if (part == 0) {
        read_state(s, head, scratch.base());
        walk(segment, length, 0, boundary(1), scratch);
        std::memcpy(bases.get() + (head * (parts + 1) + 1) * size, scratch.base(), sizeof(T) * size);
        continue;
      }
      segment.out = nullptr;
      for (int64_t i = boundary(part); i < boundary(part + 1); ++i) {
        segment.begin = i * length;
        segment.end = segment.begin + length < s.rows ? segment.begin + length : s.rows;
        run_segment<T>(segment, scratch.base(), sums.get() + (head * summed + i) * size,
                       scratch.workspace());
      }
    }
  });
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t part = 2; part <= parts; ++part) {
      T* const base = bases.get() + (head * (parts + 1) + part) * size;
      std::memcpy(base, base - size, sizeof(T) * size);
      for (int64_t i = boundary(part - 1); i < boundary(part); ++i) {
        const T* const sum = sums.get() + (head * summed + i) * size;
        for (int64_t x = 0; x < size; ++x) base[x] += sum[x];
      }
    }
  }
  for_tasks(heads * parts, threads, [&](auto next) {
    const Scratch<T> scratch(s);
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t head = task / parts, part = task % parts + 1;
      std::memcpy(scratch.base(), bases.get() + (head * (parts + 1) + part) * size, sizeof(T) * size);
      walk(segment_of<T>(s, head), length, boundary(part), boundary(part + 1), scratch);
      if (part == parts) write_state(s, head, scratch.base());
    }
  });
}

template <class T>
void run_sweep(const Sweep& s, Threads threads) {
  const int64_t heads = s.batch * s.heads;
  if (heads == 0) return;
  const int64_t useful = 1 + 4 * heads * s.rows * s.depth * s.width / kOperationsOfAThread;
  threads.count = static_cast<int>(threads.count < useful ? threads.count : useful);
  const int64_t length = segment_rows(s.rows), segments = (s.rows + length - 1) / length;
  const int64_t parts = (threads.count + heads - 1) / heads;
  if (parts <= 1 || segments <= 2) {
    sweep_by_heads<T>(s, length, segments, threads);
  } else {
    sweep_by_stretches<T>(s, length, segments, parts < segments - 1 ? parts : segments - 1, threads);
  }
}

// --- the public functions ----------------------------------------------------------------------------

Sweep sweep_of(const Problem& p, Operand a, Operand b, Operand c, Operand out, int64_t depth,
               int64_t width) {
  Sweep s;
  s.batch = p.batch;
  s.heads = p.heads;
  s.rows = p.rows;
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

// The state (depth, width + normalize) as the sweep of q and v sees it, or transposed.
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
void forward_as(const Problem& p, Array out, void* final_state, void* inverse, const Threads& threads) {
  Sweep s = sweep_of(p, plain(p.q, p.dtype), plain(p.k, p.dtype), plain(p.v, p.dtype),
                     plain(out, p.dtype), p.depth, p.width);
  s.initial = state_view(p, p.state, false);
  s.final = state_view(p, final_state, false);
  s.normalize = p.normalize;
  s.eps = p.eps;
  s.inverse = inverse;
  run_sweep<T>(s, threads);
}


template <class T>
void backward_as(const Problem& p, Array grad_out, const void* grad_state, const void* inverse,
                 const Gradients& gradients, const Threads& threads) {
  const T one = 1, zero = 0;
  const Operand q = plain(p.q, p.dtype), k = plain(p.k, p.dtype);
  Operand grads = plain(grad_out, p.dtype), values = plain(p.v, p.dtype);
  const int64_t inner = p.width + p.normalize;
  Buffer<T> slope;
  if (p.normalize) {
    slope = allocate<T>(p.batch * p.heads * p.rows);
    grads.scale = inverse;
    values.extra = &one;
    values.constant = true;
  }

  Operand wide_grads = grads;
  wide_grads.extra = p.normalize ? &zero : nullptr;
  wide_grads.constant = true;
  Sweep for_q = sweep_of(p, wide_grads, values, k, plain(gradients.q, p.dtype), inner, p.depth);
  for_q.initial = state_view(p, p.state, true);
  for_q.queries = q;
  for_q.inverse = const_cast<void*>(inverse);
  for_q.slope = slope.get();
  run_sweep<T>(for_q, threads);

  wide_grads.extra = slope.get();
  wide_grads.constant = false;
  Sweep for_k = sweep_of(p, values, wide_grads, q, plain(gradients.k, p.dtype), inner, p.depth);
  for_k.reverse = true;
  for_k.initial = state_view(p, grad_state, true);
  for_k.final = state_view(p, gradients.state, true);
  run_sweep<T>(for_k, threads);

  Sweep for_v = sweep_of(p, k, q, grads, plain(gradients.v, p.dtype), p.depth, p.width);
  for_v.reverse = true;
  for_v.initial = state_view(p, grad_state, false);
  run_sweep<T>(for_v, threads);
}

}  // namespace

void forward(const Problem& p, Array out, void* final_state, void* inverse, const Threads& threads) {
  current_kernels();  // a wrong choice throws here, not on one of the threads
  (p.dtype == Dtype::f64 ? forward_as<double> : forward_as<float>)(p, out, final_state, inverse, threads);
}

void backward(const Problem& p, Array grad_out, const void* grad_state, const void* inverse,
              const Gradients& gradients, const Threads& threads) {
  current_kernels();
  (p.dtype == Dtype::f64 ? backward_as<double> : backward_as<float>)(p, grad_out, grad_state, inverse,
                                                                     gradients, threads);
}

void step(const Problem& p, void* out, void* state_out, const Threads& threads) {
  const int64_t element = bytes_of(p.dtype), wide = p.dtype == Dtype::f64 ? 8 : 4;
  const int64_t state = p.depth * (p.width + p.normalize) * wide;
  const int64_t heads = p.batch * p.heads, useful = 1 + 4 * heads * state / wide / kOperationsOfAThread;
  Threads used = threads;
  used.count = static_cast<int>(threads.count < useful ? threads.count : useful);
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
