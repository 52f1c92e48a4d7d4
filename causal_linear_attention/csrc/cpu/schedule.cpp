// Spreads the heads of all sequences over threads and cuts the length of those into stretches that would keep
// one thread busy while others wait: all of them where there are fewer than threads. Up to as many threads as
// the tensors have heads the results have the same bits whatever the number of threads; beyond that the sums of
// a stretch are made apart, so the last bits depend on the stretches.
#include "schedule.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cache.h"
#include "threads.h"

namespace cla {
namespace {

constexpr int64_t kMinStretch = 256;

template <class T>
void run_segment(const Segment& s, T* state, T* workspace) {
  const Kernels& kernels = current_kernels();
  if constexpr (sizeof(T) == 8) {
    (s.decay == nullptr ? kernels.segment_f64 : kernels.decayed_f64)(s, state, workspace);
  } else {
    (s.decay == nullptr ? kernels.segment_f32 : kernels.decayed_f32)(s, state, workspace);
  }
}

// Null for rows without columns, which may have no memory.
char* row_pointer(const Array& array, Dtype dtype, int64_t b, int64_t h, int64_t row) {
  if (array.data == nullptr) return nullptr;
  return static_cast<char*>(array.data) +
         (b * array.batch + h / array.group * array.head + row * array.row) * bytes_of(dtype);
}

// Where the rows of one sequence's head lie. Heads are counted over all sequences, as their states are.
struct Place {
  int64_t batch, head, first, rows;
};

Place place_of(const Scan& s, int64_t head) {
  const int64_t sequence = head / s.heads;
  if (s.offsets == nullptr) return {sequence, head % s.heads, 0, s.rows};
  const int64_t first = s.offsets[sequence];
  return {0, head % s.heads, first, s.offsets[sequence + 1] - first};
}

// Of a number for each row, (batch, heads, rows): that of a sequence's first row.
int64_t number_of(const Scan& s, const Place& place) {
  return (place.batch * s.heads + place.head) * s.rows + place.first;
}

template <class T>
Rows rows_of(const Scan& s, const Operand& x, const Place& place) {
  Rows rows;
  const int64_t skipped = s.reverse && place.rows > 0 ? place.rows - 1 : 0, direction = s.reverse ? -1 : 1;
  const int64_t at = number_of(s, place) + skipped;
  rows.data = row_pointer(x.rows, x.dtype, place.batch, place.head, place.first + skipped);
  rows.stride = direction * x.rows.row;
  rows.dtype = x.dtype;
  rows.factor = x.factor;
  if (x.scale != nullptr) rows.scale = static_cast<const T*>(x.scale) + at;
  rows.scale_stride = direction;
  if (x.extra != nullptr) rows.extra = static_cast<const T*>(x.extra) + (x.constant ? 0 : at);
  rows.extra_stride = x.constant ? 0 : direction;
  return rows;
}

// The decays of a head. From the last row to the first, a row has that of the row after it.
template <class T>
void set_decays(const Scan& s, int64_t head, const Place& place, Segment& segment) {
  if (s.decay.data == nullptr) return;
  const T* const first = static_cast<const T*>(s.decay.data) + place.batch * s.decay.batch +
                         place.head / s.decay.group * s.decay.head + place.first * s.decay.row;
  segment.decay = s.reverse ? first + place.rows * s.decay.row : first;
  segment.decay_stride = s.reverse ? -s.decay.row : s.decay.row;
  segment.shifted = s.reverse;
  if (s.dots == nullptr) return;
  segment.dotted = rows_of<T>(s, s.dotted, place);
  segment.direction = s.reverse ? -1 : 1;
  const int64_t last = s.reverse && place.rows > 0 ? place.rows - 1 : 0;
  segment.dots = static_cast<T*>(s.dots) + number_of(s, place) + last;
  segment.blocks = s.first_block[head + 1] - s.first_block[head];
  segment.kept = static_cast<T*>(s.kept) + s.first_block[head] * state_size(s.depth, s.width);
  if (s.reverse) segment.products = static_cast<T*>(s.products) + s.first_block[head];
}

// Stores that pass the caches by pay where an output, with the three inputs of its size, exceeds them: whoever
// reads it next would find its beginning evicted.
template <class T>
bool worth_streaming(const Scan& s, const Rows& out, int64_t width) {
  const int64_t element = static_cast<int64_t>(sizeof(T));
  const int64_t bytes = s.batch * s.heads * s.rows * width * element;
  return 4 * bytes >= last_level_cache() && bytes_of(out.dtype) == element &&
         reinterpret_cast<uintptr_t>(out.data) % 64 == 0 && out.stride * element % 64 == 0;
}

template <class T>
Segment segment_of(const Scan& s, int64_t head) {
  const Place place = place_of(s, head);
  Segment segment;
  segment.a = rows_of<T>(s, s.a, place);
  segment.b = rows_of<T>(s, s.b, place);
  segment.c = rows_of<T>(s, s.c, place);
  const Rows out = rows_of<T>(s, s.out, place);
  segment.out = const_cast<void*>(out.data);
  segment.out_stride = out.stride;
  segment.out_dtype = out.dtype;
  segment.factor = s.factor;
  segment.depth = s.depth;
  segment.width = s.width;
  segment.rows = place.rows;
  segment.end = place.rows;
  segment.normalize = s.normalize;
  segment.eps = s.eps;
  if (s.inverse != nullptr) segment.inverse = static_cast<T*>(s.inverse) + number_of(s, place);
  if (s.slope != nullptr) {
    segment.queries = rows_of<T>(s, s.queries, place);
    segment.slope = static_cast<T*>(s.slope) + number_of(s, place);
  }
  set_decays<T>(s, head, place, segment);
  segment.streaming = segment.dots == nullptr && worth_streaming<T>(s, out, s.width);  // which are read again
  if (s.pair_width > 0) {
    const Rows pair_out = rows_of<T>(s, s.pair_out, place);
    segment.pair = rows_of<T>(s, s.pair, place);
    segment.pair_out = const_cast<void*>(pair_out.data);
    segment.pair_stride = pair_out.stride;
    segment.pair_width = s.pair_width;
    segment.pair_streaming = worth_streaming<T>(s, pair_out, s.pair_width);
  }
  return segment;
}

template <class T>
void read_state(const Scan& s, int64_t head, T* to) {
  std::memset(to, 0, static_cast<size_t>(state_size(s.depth, s.width)) * sizeof(T));
  if (s.initial.data == nullptr || (s.initial.once && head % s.initial.group != 0)) return;
  const T* const from = static_cast<const T*>(s.initial.data) + head / s.initial.group * s.initial.head;
  for (int64_t e = 0; e < s.depth; ++e) {
    for (int64_t m = 0; m < s.width; ++m) {
      to[e * pitch(s.width) + m] = from[e * s.initial.row + m * s.initial.column];
    }
    if (s.normalize) {
      to[z_offset(s.depth, s.width) + e] = from[s.initial.z + e * s.initial.z_row];
    }
  }
}

template <class T>
void write_state(const Scan& s, int64_t head, const T* from) {
  if (s.final.data == nullptr || head % s.final.group != 0) return;
  T* const to = static_cast<T*>(s.final.data) + head / s.final.group * s.final.head;
  for (int64_t e = 0; e < s.depth; ++e) {
    for (int64_t m = 0; m < s.width; ++m) {
      to[e * s.final.row + m * s.final.column] = from[e * pitch(s.width) + m];
    }
    if (s.normalize) {
      to[s.final.z + e * s.final.z_row] = from[z_offset(s.depth, s.width) + e];
    }
  }
}

// What one thread works with: the running state of a head and the kernel's scratch. The memory stays with the
// thread: some 70 KiB for heads of 64, which the system would otherwise have to clear page by page at every
// call.
template <class T>
struct Scratch {
  int64_t size;
  T* memory;
  explicit Scratch(const Scan& s) : size(state_size(s.depth, s.width)) {
    static thread_local Buffer<T> kept;
    static thread_local int64_t length = 0;
    const int64_t wanted = size + workspace_size(s.depth, s.width);
    if (wanted > length) {
      length = 0;
      kept = allocate<T>(wanted);
      length = wanted;
    }
    memory = kept.get();
  }
  T* state() const { return memory; }
  T* workspace() const { return memory + size; }
};

template <class T>
void scan_head(const Scan& s, int64_t head, const Scratch<T>& scratch) {
  const Segment segment = segment_of<T>(s, head);
  read_state(s, head, scratch.state());
  run_segment<T>(segment, scratch.state(), scratch.workspace());
  write_state(s, head, scratch.state());
}

// A thread does all scans of a head in turn: what they have in common is in its caches then. `skipped` is in
// ascending order.
template <class T>
void scan_by_heads(std::span<const Scan> scans, const std::vector<int64_t>& skipped,
                   const Threads& threads) {
  for_tasks(scans[0].sequences * scans[0].heads, threads, [&](auto next) {
    for (int64_t head = next(); head >= 0; head = next()) {
      if (std::binary_search(skipped.begin(), skipped.end(), head)) continue;
      for (const Scan& s : scans) scan_head(s, head, Scratch<T>(s));
    }
  });
}

// The decay of a state over the rows of a segment.
template <class T>
T decay_over(const Segment& s) {
  T product = 1;
  if (s.decay == nullptr) return product;
  for (int64_t i = s.begin; i < s.end; ++i) {
    if (!(s.shifted && i == 0)) product *= static_cast<const T*>(s.decay)[i * s.decay_stride];
  }
  return product;
}

// Cuts each head of `cut` into `parts` + 1 stretches. First pass: the first stretch is computed, of the others
// but the last only the sum. Second pass: all the others.
// A sum costs about 0.4 of a full computation, of a pair 0.25, so the first stretch is that much shorter.
template <class T>
void scan_by_stretches(const Scan& s, const std::vector<int64_t>& cut, int64_t parts,
                       const Threads& threads) {
  const int64_t heads = static_cast<int64_t>(cut.size()), size = state_size(s.depth, s.width);
  const double share = s.pair_width > 0 ? 0.25 : 0.4;
  auto boundary = [&](int64_t stretch, int64_t rows) -> int64_t {  // its first row
    if (stretch == 0) return 0;
    const double unit = static_cast<double>(rows) / (share + static_cast<double>(parts));
    const double row = unit * (share + static_cast<double>(stretch - 1));
    const int64_t at = round_up(static_cast<int64_t>(row), kChunk);
    return stretch == parts + 1 || at > rows ? rows : at;
  };
  // The state that enters stretch p + 1, at first the sum of stretch p alone.
  const Buffer<T> entering = allocate<T>(heads * parts * size);
  auto state_after = [&](int64_t head, int64_t stretch) {
    return entering.get() + (head * parts + stretch) * size;
  };
  auto stretch_of = [&](int64_t head, int64_t stretch) {
    Segment segment = segment_of<T>(s, cut[head]);
    segment.begin = boundary(stretch, segment.rows);
    segment.end = boundary(stretch + 1, segment.rows);
    return segment;
  };
  for_tasks(heads * parts, threads, [&](auto next) {
    const Scratch<T> scratch(s);
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t head = task / parts, part = task % parts;
      Segment segment = stretch_of(head, part);
      T* const state = state_after(head, part);
      if (part == 0) {
        read_state(s, cut[head], state);
      } else {
        std::memset(state, 0, sizeof(T) * size);
        segment.out = nullptr;
        segment.pair_out = nullptr;
        segment.products = nullptr;
        segment.dots = nullptr;
      }
      run_segment<T>(segment, state, scratch.workspace());
    }
  });
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t part = 1; part < parts; ++part) {
      T *const state = state_after(head, part), *const before = state_after(head, part - 1);
      const T factor = decay_over<T>(stretch_of(head, part));
      if (factor == 0) continue;
      for (int64_t x = 0; x < size; ++x) state[x] += factor * before[x];
    }
  }
  for_tasks(heads * parts, threads, [&](auto next) {
    const Scratch<T> scratch(s);
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t head = task / parts, part = task % parts;
      std::memcpy(scratch.state(), state_after(head, part), sizeof(T) * size);
      run_segment<T>(stretch_of(head, part + 1), scratch.state(), scratch.workspace());
      if (part + 1 == parts) write_state(s, cut[head], scratch.state());
    }
  });
}

int64_t operations(const Scan& s) {
  return (s.pair_width > 0 ? 6 : 4) * s.batch * s.heads * s.rows * s.depth * s.width;
}

// The heads to cut into stretches, in ascending order: all where there are fewer than threads. Of packed
// sequences those with one and a half times a thread's share of the rows: below, cutting costs more than the
// other threads' wait.
std::vector<int64_t> heads_to_cut(const Scan& s, int threads) {
  std::vector<int64_t> cut;
  if (s.batch * s.heads >= threads) return cut;
  const int64_t all_rows = s.batch * s.heads * s.rows;
  for (int64_t head = 0; head < s.sequences * s.heads; ++head) {
    const int64_t rows = place_of(s, head).rows;
    const bool too_long = s.offsets == nullptr || 2 * rows * threads >= 3 * all_rows;
    if (too_long && rows >= 2 * kMinStretch) cut.push_back(head);
  }
  return cut;
}

// How many threads share one of the heads to cut.
int64_t parts_of(const Scan& s, const std::vector<int64_t>& cut, int threads) {
  const int64_t heads = static_cast<int64_t>(cut.size());
  int64_t parts = (threads + heads - 1) / heads;
  for (const int64_t head : cut) parts = std::min(parts, place_of(s, head).rows / kMinStretch);
  return parts;
}

}  // namespace

template <class T>
void run_scans(std::span<const Scan> scans, Threads threads) {
  const int64_t heads = scans[0].sequences * scans[0].heads;
  if (heads == 0) return;
  int64_t work = 0;
  for (const Scan& s : scans) work += operations(s);
  threads.count = useful_threads(threads, work);
  const std::vector<int64_t> cut = heads_to_cut(scans[0], threads.count);
  if (!cut.empty()) {
    const int64_t parts = parts_of(scans[0], cut, threads.count);
    for (const Scan& s : scans) scan_by_stretches<T>(s, cut, parts, threads);
  }
  if (static_cast<int64_t>(cut.size()) < heads) scan_by_heads<T>(scans, cut, threads);
}

template void run_scans<float>(std::span<const Scan>, Threads);
template void run_scans<double>(std::span<const Scan>, Threads);

}  // namespace cla
