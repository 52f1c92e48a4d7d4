// The sweep of sweep.h. Sizes are padded with zeros to multiples of 16 in shared memory.
#include "sweep.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

namespace cla_cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 16;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocks = 1;  // shared memory of 64 KB holds no second one
#else
constexpr int kBlocks = 2;
#endif
constexpr int kMaxOutputTiles = 4;  // of 16 x 16 that one warp keeps: 64 rows of 128 columns

__host__ __device__ constexpr int pad(int x) { return (x + kTile - 1) / kTile * kTile; }
// A row's stride in shared memory: 32-byte aligned, and rows start in different banks.
__host__ __device__ constexpr int pitch(int x) { return pad(x) + 8; }
__host__ __device__ constexpr int larger(int x, int y) { return x > y ? x : y; }

// Offsets of the tiles in shared memory, in floats.
struct Layout {
  int a, b, c, scores, state, z, inverse, total;
  __host__ __device__ Layout(int depth, int width, int chunk) {
    const int rows_a = pitch(larger(depth, width));  // the outputs take a's place
    a = 0;
    b = a + chunk * rows_a;
    c = b + chunk * pitch(depth);
    scores = c + chunk * pitch(width);
    state = scores + chunk * pitch(chunk);
    z = state + pad(depth) * pitch(width);
    inverse = z + larger(pad(depth), pad(width));
    total = inverse + chunk;
  }
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline void from_float(float x, float* to) { *to = x; }
__device__ inline void from_float(float x, __nv_bfloat16* to) { *to = __float2bfloat16(x); }
__device__ inline void from_float(float x, __half* to) { *to = __float2half(x); }

template <class In>
__device__ inline In* head_rows(const Sweep& s, const Operand& x, int64_t head) {
  return static_cast<In*>(x.data) + head / s.heads_of_a_batch * x.batch + head % s.heads_of_a_batch * x.head;
}

// Where row i's scale, extra column, inverse or slope stands in an array (batch, heads, rows).
__device__ inline int64_t row_index(const Sweep& s, int64_t head, int64_t i) {
  return head * s.rows + (s.reverse ? s.rows - 1 - i : i);
}

// Rows [first, first + count) into shared memory; zero beyond `columns` and `count`. True if any is NaN or
// infinite.
template <class In>
__device__ bool load_rows(const Sweep& s, const Operand& x, int64_t head, int64_t first, int count,
                          int columns, float* to, int stride) {
  const In* const rows = head_rows<In>(s, x, head) + first * x.row;
  const int stored = columns - x.has_extra, padded = pad(columns);
  constexpr int kAtOnce = 16 / sizeof(In);
  const bool aligned = stored % kAtOnce == 0 && x.row % kAtOnce == 0 &&
                       reinterpret_cast<uintptr_t>(rows) % 16 == 0;
  const int step = aligned ? kAtOnce : 1, groups = padded / step;
  bool bad = false;
  for (int at = threadIdx.x; at < s.chunk * groups; at += kThreads) {
    const int i = at / groups, column = at % groups * step;
    float values[kAtOnce];
    for (int n = 0; n < step; ++n) values[n] = 0.0f;
    if (i < count && column < stored) {
      if (aligned) {
        const uint4 bits = *reinterpret_cast<const uint4*>(rows + i * x.row + column);
        const In* const numbers = reinterpret_cast<const In*>(&bits);
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) values[n] = to_float(numbers[n]);
      } else {
        values[0] = to_float(rows[i * x.row + column]);
      }
      const float scale = x.scale != nullptr ? x.scale[row_index(s, head, first + i)] : 1.0f;
      for (int n = 0; n < step; ++n) {
        if (x.scale != nullptr) values[n] *= scale;
        bad |= !isfinite(values[n]);
      }
    } else if (i < count && x.has_extra && column <= stored && stored < column + step) {
      values[stored - column] =
          x.extra != nullptr ? x.extra[row_index(s, head, first + i)] : x.extra_constant;
    }
    for (int n = 0; n < step; ++n) to[i * stride + column + n] = values[n];
  }
  return bad;
}

// --- products of tiles in shared memory --------------------------------------------------------------

// A 16 x 16 piece of a product, one warp. Element (m, k) of the left factor is left[m * lm + k * lk], (k, n)
// of the right one right[k * rk + n * rn]; one of each pair of strides is 1.
template <bool kTensor>
struct Piece;

template <>
struct Piece<false> {
  float acc[8];  // lane: row lane / 2, columns (lane % 2) * 8 ...
  __device__ void zero() {
    for (float& x : acc) x = 0.0f;
  }
  __device__ static int row() { return threadIdx.x % 32 / 2; }
  __device__ static int column() { return threadIdx.x % 2 * 8; }
  __device__ void read(const float* from, int stride) {
#pragma unroll
    for (int n = 0; n < 8; ++n) acc[n] = from[row() * stride + column() + n];
  }
  __device__ void write(float* to, int stride) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) to[row() * stride + column() + n] = acc[n];
  }
  __device__ void multiply(const float* left, int lm, int lk, const float* right, int rk, int rn, int depth) {
    for (int k = 0; k < depth; ++k) {
      const float factor = left[row() * lm + k * lk];
#pragma unroll
      for (int n = 0; n < 8; ++n) acc[n] = fmaf(factor, right[k * rk + (column() + n) * rn], acc[n]);
    }
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <>
struct Piece<true> {
  using Sums = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 8, float>;
  template <class Order>
  using Left = nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 8, nvcuda::wmma::precision::tf32, Order>;
  template <class Order>
  using Right = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 8, nvcuda::wmma::precision::tf32, Order>;
  using Rows = nvcuda::wmma::row_major;
  using Columns = nvcuda::wmma::col_major;
  Sums acc;

  __device__ void zero() { nvcuda::wmma::fill_fragment(acc, 0.0f); }
  __device__ void read(const float* from, int stride) {
    nvcuda::wmma::load_matrix_sync(acc, from, stride, nvcuda::wmma::mem_row_major);
  }
  __device__ void write(float* to, int stride) const {
    nvcuda::wmma::store_matrix_sync(to, acc, stride, nvcuda::wmma::mem_row_major);
  }
  template <class L, class R>
  __device__ void multiply_as(const float* left, int lm, int lk, const float* right, int rk, int rn, int depth) {
#pragma unroll 1
    for (int k = 0; k < depth; k += 8) {
      L x;
      R y;
      nvcuda::wmma::load_matrix_sync(x, left + k * lk, larger(lm, lk));
      nvcuda::wmma::load_matrix_sync(y, right + k * rk, larger(rk, rn));
#pragma unroll
      for (int n = 0; n < x.num_elements; ++n) x.x[n] = nvcuda::wmma::__float_to_tf32(x.x[n]);
#pragma unroll
      for (int n = 0; n < y.num_elements; ++n) y.x[n] = nvcuda::wmma::__float_to_tf32(y.x[n]);
      nvcuda::wmma::mma_sync(acc, x, y, acc);
    }
  }
  __device__ void multiply(const float* left, int lm, int lk, const float* right, int rk, int rn, int depth) {
    if (lk != 1) {
      multiply_as<Left<Columns>, Right<Rows>>(left, lm, lk, right, rk, rn, depth);
    } else if (rn == 1) {
      multiply_as<Left<Rows>, Right<Rows>>(left, lm, lk, right, rk, rn, depth);
    } else {
      multiply_as<Left<Rows>, Right<Columns>>(left, lm, lk, right, rk, rn, depth);
    }
  }
};
#else
template <>
struct Piece<true> : Piece<false> {};
#endif

// --- one segment -------------------------------------------------------------------------------------

// The state that enters the segment: the initial one and the sums of the segments before it, in order.
__device__ void enter(const Sweep& s, const Layout& at, float* memory, int64_t head, int segment,
                      bool only_sums) {
  const int columns = s.width + s.normalize, stride = pitch(s.width);
  for (int x = threadIdx.x; x < at.inverse - at.state; x += kThreads) memory[at.state + x] = 0.0f;
  __syncthreads();
  if (only_sums) return;
  const int64_t size = static_cast<int64_t>(s.depth) * columns;
  for (int x = threadIdx.x; x < size; x += kThreads) {
    const int e = x / columns, m = x % columns;
    float value = 0.0f;
    if (s.initial.data != nullptr) {
      value = s.initial.data[head * s.initial.head + e * s.initial.row + m * s.initial.column];
    }
    for (int t = 0; t < segment; ++t) value += s.sums[(head * s.segments + t) * size + x];
    (m < s.width ? memory[at.state + e * stride + m] : memory[at.z + e]) = value;
  }
}

__device__ void leave(const Sweep& s, const Layout& at, const float* memory, int64_t head, int segment,
                      bool only_sums) {
  if (!only_sums && (s.final.data == nullptr || segment != s.segments - 1)) return;
  const int columns = s.width + s.normalize, stride = pitch(s.width);
  const int64_t size = static_cast<int64_t>(s.depth) * columns;
  for (int x = threadIdx.x; x < size; x += kThreads) {
    const int e = x / columns, m = x % columns;
    const float value = m < s.width ? memory[at.state + e * stride + m] : memory[at.z + e];
    if (only_sums) {
      s.sums[(head * s.segments + segment) * size + x] = value;
    } else {
      s.final.data[head * s.final.head + e * s.final.row + m * s.final.column] = value;
    }
  }
}

// inverse[i] = 1 / (a[i] . z + sum of row i of the scores + eps): the forward pass's normaliser.
__device__ void normalize_chunk(const Sweep& s, const Layout& at, float* memory, int64_t head, int64_t first,
                                int count) {
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < count; i += kWarps) {
    const float* const a = memory + at.a + i * pitch(larger(s.depth, s.width));
    float total = 0.0f;
    for (int e = lane; e < s.depth; e += 32) total += a[e] * memory[at.z + e];
    for (int j = lane; j <= i; j += 32) total += memory[at.scores + i * pitch(s.chunk) + j];
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
    if (lane == 0) {
      memory[at.inverse + i] = 1.0f / (total + s.eps);
      s.inverse[row_index(s, head, first + i)] = memory[at.inverse + i];
    }
  }
}

// The denominator's part in the gradient of q: out[i] += slope[i] z[i]; z is the sum of c before the chunk.
template <class In>
__device__ void project_chunk(const Sweep& s, const Layout& at, float* memory, int64_t head, int64_t first,
                              int count) {
  const int lane = threadIdx.x % 32, stride = pitch(larger(s.depth, s.width));
  const In* const queries = head_rows<In>(s, s.queries, head) + first * s.queries.row;
  float* const slopes = memory + at.inverse;
  for (int i = threadIdx.x / 32; i < count; i += kWarps) {
    float total = 0.0f;
    for (int m = lane; m < s.width; m += 32) {
      total += to_float(queries[i * s.queries.row + m]) * memory[at.a + i * stride + m];
    }
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
    if (lane == 0) {
      const int64_t row = row_index(s, head, first + i);
      slopes[i] = -total * s.inverse[row];
      s.slope[row] = slopes[i];
    }
  }
  __syncthreads();
  for (int m = threadIdx.x; m < s.width; m += kThreads) {
    float z = memory[at.z + m];
    for (int i = 0; i < count; ++i) {
      z += memory[at.c + i * pitch(s.width) + m];
      memory[at.a + i * stride + m] += slopes[i] * z;
    }
  }
}

// P C for rows that hold a NaN or an infinity in c: zero times those would reach earlier rows.
__device__ void exact_triangle(const Sweep& s, const Layout& at, const float* memory, Piece<false>& piece,
                               int row, int column) {
  const int i = row + Piece<false>::row();
  for (int j = 0; j <= i; ++j) {
    const float factor = memory[at.scores + i * pitch(s.chunk) + j];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float value = memory[at.c + j * pitch(s.width) + column + Piece<false>::column() + n];
      piece.acc[n] = fmaf(factor, value, piece.acc[n]);
    }
  }
}

// out = P C + A S into a's place.
template <bool kTensor>
__device__ void output_chunk(const Sweep& s, const Layout& at, float* memory) {
  const int stride = pitch(larger(s.depth, s.width)), across = pad(s.width) / kTile;
  const int pieces = s.chunk / kTile * across;
  Piece<kTensor> kept[kMaxOutputTiles];
#pragma unroll
  for (int n = 0; n < kMaxOutputTiles; ++n) {
    const int piece = threadIdx.x / 32 + n * kWarps, row = piece / across * kTile;
    const int column = piece % across * kTile;
    if (piece < pieces) {
      kept[n].zero();
      kept[n].multiply(memory + at.a + row * stride, stride, 1, memory + at.state + column, pitch(s.width), 1,
                       pad(s.depth));
      if constexpr (kTensor) {
        kept[n].multiply(memory + at.scores + row * pitch(s.chunk), pitch(s.chunk), 1, memory + at.c + column,
                         pitch(s.width), 1, row + kTile);
      } else {
        exact_triangle(s, at, memory, kept[n], row, column);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kMaxOutputTiles; ++n) {
    const int piece = threadIdx.x / 32 + n * kWarps;
    if (piece < pieces) {
      kept[n].write(memory + at.a + piece / across * kTile * stride + piece % across * kTile, stride);
    }
  }
}

template <bool kTensor>
__device__ void score_chunk(const Sweep& s, const Layout& at, float* memory) {
  const int stride = pitch(larger(s.depth, s.width)), tiles = s.chunk / kTile;
  for (int piece = threadIdx.x / 32; piece < tiles * tiles; piece += kWarps) {
    const int row = piece / tiles * kTile, column = piece % tiles * kTile;
    if (column > row) continue;
    Piece<kTensor> sums;
    sums.zero();
    sums.multiply(memory + at.a + row * stride, stride, 1, memory + at.b + column * pitch(s.depth), 1,
                  pitch(s.depth), pad(s.depth));
    sums.write(memory + at.scores + row * pitch(s.chunk) + column, pitch(s.chunk));
  }
  __syncthreads();
  for (int x = threadIdx.x; x < s.chunk * s.chunk; x += kThreads) {
    const int i = x / s.chunk, j = x % s.chunk;
    if (j > i) memory[at.scores + i * pitch(s.chunk) + j] = 0.0f;
  }
  __syncthreads();
}

template <bool kTensor>
__device__ void update_state(const Sweep& s, const Layout& at, float* memory) {
  const int across = pad(s.width) / kTile, pieces = pad(s.depth) / kTile * across;
  for (int piece = threadIdx.x / 32; piece < pieces; piece += kWarps) {
    const int row = piece / across * kTile, column = piece % across * kTile;
    float* const to = memory + at.state + row * pitch(s.width) + column;
    Piece<kTensor> sums;
    sums.read(to, pitch(s.width));
    sums.multiply(memory + at.b + row, 1, pitch(s.depth), memory + at.c + column, pitch(s.width), 1, s.chunk);
    sums.write(to, pitch(s.width));
  }
  if (s.normalize) {
    for (int e = threadIdx.x; e < s.depth; e += kThreads) {
      float total = 0.0f;
      for (int j = 0; j < s.chunk; ++j) total += memory[at.b + j * pitch(s.depth) + e];
      memory[at.z + e] += total;
    }
  }
}

template <class In, bool kTensor>
__global__ void __launch_bounds__(kThreads, kBlocks) sweep_kernel(const Sweep s, const bool only_sums) {
  extern __shared__ __align__(128) float memory[];
  const Layout at(s.depth, s.width, s.chunk);
  const int64_t head = blockIdx.x;
  const int segment = blockIdx.y, stride = pitch(larger(s.depth, s.width));
  const int64_t begin = segment * s.segment_rows;
  const int64_t end = begin + s.segment_rows < s.rows ? begin + s.segment_rows : s.rows;
  enter(s, at, memory, head, segment, only_sums);
  for (int64_t first = begin; first < end; first += s.chunk) {
    const int count = static_cast<int>(end - first < s.chunk ? end - first : s.chunk);
    load_rows<In>(s, s.b, head, first, count, s.depth, memory + at.b, pitch(s.depth));
    bool bad = load_rows<In>(s, s.c, head, first, count, s.width, memory + at.c, pitch(s.width));
    if (!only_sums) {
      load_rows<In>(s, s.a, head, first, count, s.depth, memory + at.a, stride);
      bad = __syncthreads_or(bad);
      score_chunk<kTensor>(s, at, memory);
      if (s.normalize) normalize_chunk(s, at, memory, head, first, count);
      if (s.slope != nullptr) {  // z before the state changes: its last row
        for (int m = threadIdx.x; m < s.width; m += kThreads) {
          memory[at.z + m] = memory[at.state + (s.depth - 1) * pitch(s.width) + m];
        }
      }
      if (bad) {
        output_chunk<false>(s, at, memory);
      } else {
        output_chunk<kTensor>(s, at, memory);
      }
    }
    __syncthreads();
    update_state<kTensor>(s, at, memory);
    if (!only_sums) {
      if (s.slope != nullptr) project_chunk<In>(s, at, memory, head, first, count);
      __syncthreads();
      In* const out = head_rows<In>(s, s.out, head) + first * s.out.row;
      for (int x = threadIdx.x; x < count * s.width; x += kThreads) {
        const int i = x / s.width, m = x % s.width;
        const float scale = s.normalize ? memory[at.inverse + i] : 1.0f;
        const float value = memory[at.a + i * stride + m];
        from_float(s.normalize ? value * scale : value, out + i * s.out.row + m);
      }
    }
    __syncthreads();
  }
  leave(s, at, memory, head, segment, only_sums);
}

// --- launching ---------------------------------------------------------------------------------------

int attribute(cudaDeviceAttr name) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, name, device) == cudaSuccess ? value : 0;
}

size_t shared_bytes(const Sweep& s) {
  return sizeof(float) * static_cast<size_t>(Layout(s.depth, s.width, s.chunk).total);
}

template <class In, bool kTensor>
cudaError_t launch_as(const Sweep& s, cudaStream_t stream) {
  const size_t bytes = shared_bytes(s);
  const auto kernel = sweep_kernel<In, kTensor>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const auto heads = static_cast<unsigned>(s.heads);
  if (s.segments > 1) {
    kernel<<<dim3(heads, s.segments - 1), kThreads, bytes, stream>>>(s, true);
  }
  kernel<<<dim3(heads, s.segments), kThreads, bytes, stream>>>(s, false);
  return cudaGetLastError();
}

}  // namespace

int64_t sums_size(const Sweep& s) { return static_cast<int64_t>(s.depth) * (s.width + s.normalize); }

bool plan(Sweep& s) {
  if (pad(s.width) > 128) return false;
  const auto limit = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  for (s.chunk = 64; s.chunk >= kTile && shared_bytes(s) > limit; s.chunk /= 2) {
  }
  if (s.chunk < kTile) return false;
  constexpr int64_t kFewestRows = 512, kMostSegments = 64;
  const int64_t wanted = s.heads > 0 ? 2 * attribute(cudaDevAttrMultiProcessorCount) / s.heads : 1;
  int64_t segments = wanted < s.rows / kFewestRows ? wanted : s.rows / kFewestRows;
  segments = segments < kMostSegments ? segments : kMostSegments;
  segments = segments < 2 ? 1 : segments;
  s.segment_rows = (s.rows + segments - 1) / segments;
  s.segment_rows = (s.segment_rows + s.chunk - 1) / s.chunk * s.chunk;
  s.segments = s.rows > 0 ? static_cast<int>((s.rows + s.segment_rows - 1) / s.segment_rows) : 1;
  return true;
}

cudaError_t launch(const Sweep& s, cudaStream_t stream) {
  if (s.heads == 0) return cudaSuccess;
  const bool tensor = attribute(cudaDevAttrComputeCapabilityMajor) >= 8;
  if (s.dtype == Dtype::f32) return launch_as<float, false>(s, stream);
  if (s.dtype == Dtype::bf16) {
    return tensor ? launch_as<__nv_bfloat16, true>(s, stream) : launch_as<__nv_bfloat16, false>(s, stream);
  }
  return tensor ? launch_as<__half, true>(s, stream) : launch_as<__half, false>(s, stream);
}

}  // namespace cla_cuda
