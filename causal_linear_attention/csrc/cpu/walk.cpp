// Cuts a sweep into segments and spreads heads and segments over threads.
//
// The length of a segment depends on the number of rows alone. The state that enters segment s + 1 is the
// one that enters segment s plus the sum of segment s, whoever computes that sum: one thread on its way
// through the head, or, when there are fewer heads than threads, another thread in a pass of its own. So
// the results have the same bits whatever the number of threads.
#include "walk.h"

#include <cstring>

#include "tasks.h"

namespace cla {
namespace {

constexpr int64_t kMaxSegments = 48;
constexpr int64_t kStreamingBytes = int64_t{1} << 24;

int64_t segment_rows(int64_t rows) {
  const int64_t length = round_up((rows + kMaxSegments - 1) / kMaxSegments, kChunk);
  return length < 8 * kChunk ? 8 * kChunk : length;
}

template <class T>
void run_segment(const Segment& s, const T* base, T* sums, T* workspace) {
  if constexpr (sizeof(T) == 8) {
    current_kernels().segment_f64(s, base, sums, workspace);
  } else {
    current_kernels().segment_f32(s, base, sums, workspace);
  }
}

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
bool worth_streaming(const Sweep& s, const Rows& out, int64_t width) {
  const int64_t element = static_cast<int64_t>(sizeof(T));
  return s.batch * s.heads * s.rows * width * element >= kStreamingBytes && bytes_of(out.dtype) == element &&
         reinterpret_cast<uintptr_t>(out.data) % 64 == 0 && out.stride * element % 64 == 0;
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
  segment.streaming = worth_streaming<T>(s, out, s.width);
  if (s.pair_width > 0) {
    const Rows pair_out = rows_of<T>(s, s.pair_out, b, h);
    segment.pair = rows_of<T>(s, s.pair, b, h);
    segment.pair_out = const_cast<void*>(pair_out.data);
    segment.pair_stride = pair_out.stride;
    segment.pair_width = s.pair_width;
    segment.pair_streaming = worth_streaming<T>(s, pair_out, s.pair_width);
  }
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
// The memory stays with the thread: some 200 KiB for heads of 64, which the system would otherwise have to
// clear page by page at every call.
template <class T>
struct Scratch {
  int64_t state;
  T* memory;
  explicit Scratch(const Sweep& s) : state(state_size(s.depth, s.width)) {
    static thread_local Buffer<T> kept;
    static thread_local int64_t size = 0;
    const int64_t wanted = 2 * state + workspace_size(s.depth, s.width);
    if (wanted > size) {
      size = 0;
      kept = allocate<T>(wanted);
      size = wanted;
    }
    memory = kept.get();
  }
  T* base() const { return memory; }
  T* sums() const { return memory + state; }
  T* workspace() const { return memory + 2 * state; }
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

template <class T>
void walk_head(const Sweep& s, int64_t head, const Scratch<T>& scratch) {
  const int64_t length = segment_rows(s.rows);
  read_state(s, head, scratch.base());
  walk(segment_of<T>(s, head), length, 0, (s.rows + length - 1) / length, scratch);
  write_state(s, head, scratch.base());
}

template <class T>
void sweep_by_heads(const Sweep& s, const Threads& threads) {
  for_tasks(s.batch * s.heads, threads, [&](auto next) {
    const Scratch<T> scratch(s);
    for (int64_t head = next(); head >= 0; head = next()) walk_head(s, head, scratch);
  });
}

// Fewer heads than threads: each head is cut into `parts` + 1 stretches. First pass: the first stretch is
// computed, of the others but the last only the sums of their segments. Second pass: all the others.
// A sum costs about 0.4 of a full computation, of a pair 0.25, so the first stretch is that much shorter.
template <class T>
void sweep_by_stretches(const Sweep& s, int64_t length, int64_t segments, int64_t parts,
                        const Threads& threads) {
  const int64_t heads = s.batch * s.heads, size = state_size(s.depth, s.width);
  const double share = s.pair_width > 0 ? 0.25 : 0.4;
  auto boundary = [&](int64_t part) -> int64_t {  // first segment of stretch `part`, 0 <= part <= parts + 1
    if (part == 0) return 0;
    const double unit = static_cast<double>(segments) / (share + static_cast<double>(parts));
    const auto at = static_cast<int64_t>(unit * (share + static_cast<double>(part - 1)) + 0.5);
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
      segment.pair_out = nullptr;
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

int64_t operations(const Sweep& s) {
  return (s.pair_width > 0 ? 6 : 4) * s.batch * s.heads * s.rows * s.depth * s.width;
}

}  // namespace

template <class T>
void run_sweep(const Sweep& s, Threads threads) {
  const int64_t heads = s.batch * s.heads;
  if (heads == 0) return;
  threads.count = useful_threads(threads, operations(s));
  const int64_t length = segment_rows(s.rows), segments = (s.rows + length - 1) / length;
  const int64_t parts = (threads.count + heads - 1) / heads;
  if (parts <= 1 || segments <= 2) {
    sweep_by_heads<T>(s, threads);
  } else {
    sweep_by_stretches<T>(s, length, segments, parts < segments - 1 ? parts : segments - 1, threads);
  }
}

template void run_sweep<float>(const Sweep&, Threads);
template void run_sweep<double>(const Sweep&, Threads);

}  // namespace cla
