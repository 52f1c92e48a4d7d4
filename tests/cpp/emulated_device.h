// The device layer of the CUDA kernels (csrc/cuda/device.cuh) on a CPU.
//
// Every thread of a block is a fiber. What a warp does together (matrix products, loads of matrices,
// shuffles) waits for its 32 lanes and follows the layouts of PTX; a barrier waits for all threads. Shared
// memory starts as NaN. A copy that was started makes its target NaN until its group was waited for. Whoever
// is too early, too late or out of bounds therefore gets a NaN or a signal.
//
// `set_order` says who runs when: 0 one block after the other, in each warp by warp as far as it gets; 1 the same
// from the last to the first; n > 1 up to n blocks at once, blocks and warps in a random order. A block that tells
// others something stops until they have had a chance to read it, whatever it has not written by then. A negative
// order deals tickets from the last to the first, which kernels need not bear. `set_launcher` hands launches to someone
// else instead: tests/operator/ptx runs nvcc's code for them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define CLA_DEVICE inline
#define CLA_CALL inline
#define CLA_KERNEL(threads, blocks) void
#define CLA_PARAMETER const

namespace emulation {

int thread();
int block_index();
int segment();
unsigned char* memory();
void barrier();
bool barrier_or(bool x);
int take_ticket(int* counter);
void store_release(int* to, int x);
int wait_and_load_acquire(const int* from);
// Waits for all lanes of the warp; the last one runs all(arguments of the 32 lanes).
void together(int kind, void* arguments, void (*all)(void* const* lanes));
void cp_async(void* to, const void* from, int bytes, bool wanted);
void cp_async_commit();
void cp_async_wait(int pending);
void set_order(int order);
// Null, or what is wrong. `kernel` is a text that has its name and template arguments.
const char* launch(void (*body)(const void*), const char* kernel, const void* parameter, int64_t blocks, int segments,
                   int threads, int64_t shared_bytes);
void check(bool condition, const char* what);
void check_shared(const void* p, int bytes, const char* what);

}  // namespace emulation

namespace cla::cuda {

CLA_DEVICE int thread_index() { return emulation::thread(); }
CLA_DEVICE int block_index() { return emulation::block_index(); }
CLA_DEVICE int segment_index() { return emulation::segment(); }
CLA_DEVICE unsigned char* shared_memory() { return emulation::memory(); }
CLA_DEVICE void sync_threads() { emulation::barrier(); }
CLA_DEVICE bool sync_threads_or(bool x) { return emulation::barrier_or(x); }
CLA_DEVICE int take_ticket(int* counter) { return emulation::take_ticket(counter); }
CLA_DEVICE void store_release(int* to, int x) { emulation::store_release(to, x); }
CLA_DEVICE int wait_and_load_acquire(const int* from) { return emulation::wait_and_load_acquire(from); }
CLA_DEVICE void mark_rare() {}
CLA_DEVICE int here(int x) { return x; }
CLA_DEVICE float here(float x) { return x; }
CLA_DEVICE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
CLA_DEVICE float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

CLA_DEVICE float larger(float x, float y) { return std::fmax(x, std::fabs(y)); }
CLA_DEVICE float maximum(float x, float y) { return std::fmax(x, y); }
CLA_DEVICE float square_root(float x) { return std::sqrt(x); }
CLA_DEVICE float exponential(float x) { return std::exp(x); }
CLA_DEVICE float exponential_minus_one(float x) { return std::expm1(x); }
CLA_DEVICE Rotation rotation(double angle) {
  const double half_turns = angle * kHalfTurnsOfRadian;
  const float left = static_cast<float>(half_turns - 2.0 * std::rint(0.5 * half_turns));
  return {static_cast<float>(std::cos(left / kHalfTurnsOfRadian)),
          static_cast<float>(std::sin(left / kHalfTurnsOfRadian))};
}

CLA_DEVICE void sync_warp() {
  emulation::together(1, nullptr, [](void* const*) {});
}

struct Shuffle {
  float in, out;
  int source;
};
CLA_DEVICE float shuffle_from(float x, int lane) {
  Shuffle s{x, 0.0f, lane};
  emulation::together(2, &s, [](void* const* lanes) {
    for (int l = 0; l < 32; ++l) {
      Shuffle& mine = *static_cast<Shuffle*>(lanes[l]);
      mine.out = static_cast<Shuffle*>(lanes[mine.source])->in;
    }
  });
  return s.out;
}
CLA_DEVICE float shuffle_xor(float x, int mask) { return shuffle_from(x, emulation::thread() % 32 ^ mask); }
CLA_DEVICE bool any_lane(bool x) {
  bool any = x;
  emulation::together(3, &any, [](void* const* lanes) {
    bool result = false;
    for (int l = 0; l < 32; ++l) result |= *static_cast<bool*>(lanes[l]);
    for (int l = 0; l < 32; ++l) *static_cast<bool*>(lanes[l]) = result;
  });
  return any;
}

// --- 16-bit numbers, rounded to nearest, ties to even ---------------------------------------------------

inline uint32_t narrow(float x, Bf16) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
inline uint32_t narrow(float x, Half) {
  const uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fffu;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude < 0x38800000u) return sign | (bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000u);
  return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
}
inline float widen(uint32_t bits, Bf16) { return from_bits(bits << 16); }
inline float widen(uint32_t bits, Half) {
  const uint32_t sign = (bits & 0x8000u) << 16, low = bits & 0x7fffu;
  const float magnitude = from_bits(low << 13) * from_bits(0x77800000u);
  return from_bits(sign | (low >= 0x7c00u ? 0x7f800000u | (low << 13) : bits_of(magnitude)));
}
template <class T>
uint32_t pack(float x, float y, T type) {
  return narrow(x, type) | narrow(y, type) << 16;
}
template <class T>
float low(uint32_t x, T type) {
  return widen(x & 0xffffu, type);
}
template <class T>
float high(uint32_t x, T type) {
  return widen(x >> 16, type);
}

// --- what a warp does together --------------------------------------------------------------------------

struct Matrices {
  const void* row;
  uint32_t* x;
};
// PTX: lane l holds of each matrix the numbers 2 (l % 4) and the next of row l / 4, of the transposed one.
template <bool kTranspose>
void ldmatrix_x4(uint32_t (&x)[4], const void* row) {
  emulation::check_shared(row, 16, "a row of a matrix");
  emulation::check(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a row of a matrix is not aligned");
  Matrices mine{row, x};
  emulation::together(4 + kTranspose, &mine, [](void* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t numbers[8][8];
      for (int r = 0; r < 8; ++r) {
        std::memcpy(numbers[r], static_cast<Matrices*>(lanes[matrix * 8 + r])->row, 16);
      }
      for (int l = 0; l < 32; ++l) {
        const int r = l / 4, c = l % 4 * 2;
        const uint32_t first = kTranspose ? numbers[c][r] : numbers[r][c];
        const uint32_t second = kTranspose ? numbers[c + 1][r] : numbers[r][c + 1];
        static_cast<Matrices*>(lanes[l])->x[matrix] = first | second << 16;
      }
    }
  });
}

// How tensor cores round the sum of an instruction's products.
inline float toward_zero(double x) {
  const float nearest = static_cast<float>(x);
  if (!(std::abs(static_cast<double>(nearest)) > std::abs(x)) || std::isinf(x)) return nearest;
  return std::nextafter(nearest, 0.0f);
}

struct MultiplyAdd {
  float* d;
  const float* c;
  const uint32_t* a;
  uint32_t b[2];
};
// PTX, mma.m16n8k16: in lane l, a[r] is row l / 4 + 8 (r % 2), columns 2 (l % 4) + 8 (r / 2) and the next; b[r]
// is rows 2 (l % 4) + 8 r and the next, column l / 4; d[x] is row l / 4 + 8 (x / 2), column 2 (l % 4) + x % 2.
template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&c)[4], T) {
  MultiplyAdd mine{d, c, a, {b0, b1}};
  emulation::together(6, &mine, [](void* const* lanes) {
    float left[16][16], right[16][8];
    for (int l = 0; l < 32; ++l) {
      const MultiplyAdd& lane = *static_cast<MultiplyAdd*>(lanes[l]);
      for (int r = 0; r < 4; ++r) {
        float* const to = &left[l / 4 + r % 2 * 8][l % 4 * 2 + r / 2 * 8];
        to[0] = low(lane.a[r], T{});
        to[1] = high(lane.a[r], T{});
      }
      for (int r = 0; r < 2; ++r) {
        right[l % 4 * 2 + r * 8][l / 4] = low(lane.b[r], T{});
        right[l % 4 * 2 + r * 8 + 1][l / 4] = high(lane.b[r], T{});
      }
    }
    for (int l = 0; l < 32; ++l) {
      for (int x = 0; x < 4; ++x) {
        const MultiplyAdd& lane = *static_cast<MultiplyAdd*>(lanes[l]);
        double sum = lane.c[x];
        for (int k = 0; k < 16; ++k) {
          sum += static_cast<double>(left[l / 4 + x / 2 * 8][k]) * right[k][l % 4 * 2 + x % 2];
        }
        lane.d[x] = toward_zero(sum);
      }
    }
  });
}

template <int kBytes>
void cp_async(void* to, const void* from, bool wanted) {
  emulation::cp_async(to, from, kBytes, wanted);
}
CLA_DEVICE void cp_async_commit() { emulation::cp_async_commit(); }
template <int kPending>
void cp_async_wait() {
  emulation::cp_async_wait(kPending);
}

template <auto kKernel>
int resident_blocks(const Device& device, int threads, int, int64_t shared_bytes) {
  const int64_t by_memory = (device.shared_bytes + 1024) / (shared_bytes + 1024), by_threads = 1536 / threads;
  return static_cast<int>(by_memory < by_threads ? by_memory : by_threads);
}

inline const char* clear(void* data, int64_t bytes, void*) {
  std::memset(data, 0, bytes);
  return nullptr;
}

template <auto kKernel, class Parameter>
const char* launch_kernel(const Parameter& parameter, const Device&, int64_t blocks, int segments, int threads,
                          int64_t shared_bytes, void*) {
  return emulation::launch([](const void* x) { kKernel(*static_cast<const Parameter*>(x)); }, __PRETTY_FUNCTION__,
                           &parameter, blocks, segments, threads, shared_bytes);
}

}  // namespace cla::cuda
