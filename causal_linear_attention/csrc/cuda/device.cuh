// The few things a GPU has that C++ has not. tests/cpp/emulated_device.h gives them to a CPU, so that the
// kernels can be tested without a GPU; nothing else in this folder may use CUDA's own names.
#pragma once

#include <cstdint>

#include "attention.h"

namespace cla::cuda {

struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
struct Rotation {
  float cosine, sine;
};
constexpr double kHalfTurnsOfRadian = 0.31830988618379067154;

}  // namespace cla::cuda

#ifndef __CUDACC__
#include <emulated_device.h>
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "runtime.h"

#define CLA_DEVICE __device__ __forceinline__
#define CLA_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define CLA_PARAMETER const __grid_constant__
#if defined(__CUDA_ARCH__)
#define CLA_CAPABILITY (__CUDA_ARCH__ / 10)
#else
#define CLA_CAPABILITY 80
#endif
// Compute capability 7.5 has no instructions for bfloat16. What takes their place is called, not inlined: a
// kernel with a hundred copies of it takes minutes to compile.
#if CLA_CAPABILITY >= 80
#define CLA_CALL __device__ __forceinline__
#else
#define CLA_CALL __device__ __noinline__
#endif

namespace cla::cuda {

CLA_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
CLA_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
CLA_DEVICE int segment_index() { return static_cast<int>(blockIdx.y); }
CLA_DEVICE void sync_threads() { __syncthreads(); }
// sync_threads(), and whether x holds for any thread.
CLA_DEVICE bool sync_threads_or(bool x) { return __syncthreads_or(x) != 0; }
CLA_DEVICE void sync_warp() { __syncwarp(); }
// The next number of a counter that all blocks share.
CLA_DEVICE int take_ticket(int* counter) { return atomicAdd(counter, 1); }
// For other blocks: whoever loads what was stored sees all that this block wrote before, if a barrier came between.
CLA_DEVICE void store_release(int* to, int x) {
  __threadfence();
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
// Waits until it is not 0. What a block reads after the next barrier is what its writer had written.
CLA_DEVICE int wait_and_load_acquire(const int* from) {
  int x = 0;
  while (true) {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    if (x != 0) return x;
    __nanosleep(40);
  }
}
// Begins code that hardly ever runs: profilers can count it, benchmarks/cuda_resources.py does not.
CLA_DEVICE void mark_rare() { asm volatile("pmevent 0;"); }
CLA_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
CLA_DEVICE float shuffle_from(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
CLA_DEVICE bool any_lane(bool x) { return __any_sync(0xffffffffu, x) != 0; }
// x; what is computed from it is computed where it is needed, not kept in registers from before a loop.
CLA_DEVICE int here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
CLA_DEVICE float here(float x) {
  asm volatile("" : "+f"(x));
  return x;
}
CLA_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
CLA_DEVICE float from_bits(uint32_t x) { return __uint_as_float(x); }
// The larger of x and the magnitude of y; x if that is not a number.
CLA_DEVICE float larger(float x, float y) { return fmaxf(x, fabsf(y)); }
CLA_DEVICE float maximum(float x, float y) { return fmaxf(x, y); }
CLA_DEVICE float square_root(float x) { return sqrtf(x); }
CLA_DEVICE float exponential(float x) { return expf(x); }
CLA_DEVICE float exponential_minus_one(float x) { return expm1f(x); }
// Of an angle; what is left of it without whole turns is exact enough for float32.
CLA_DEVICE Rotation rotation(double angle) {
  const double half_turns = angle * kHalfTurnsOfRadian;
  Rotation by;
  sincospif(static_cast<float>(half_turns - 2.0 * rint(0.5 * half_turns)), &by.sine, &by.cosine);
  return by;
}

CLA_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

// Two numbers rounded into one register, the first one low, and back.
CLA_DEVICE uint32_t pack(float x, float y, Bf16) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&both);
}
CLA_DEVICE uint32_t pack(float x, float y, Half) {
  const __half2 both = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&both);
}
CLA_DEVICE float low(uint32_t x, Bf16) { return from_bits(x << 16); }
CLA_DEVICE float high(uint32_t x, Bf16) { return from_bits(x & 0xffff0000u); }
CLA_DEVICE float low(uint32_t x, Half) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(x & 0xffffu)));
}
CLA_DEVICE float high(uint32_t x, Half) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(x >> 16)));
}

CLA_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
template <bool kTranspose>
CLA_DEVICE void ldmatrix_x4(uint32_t (&x)[4], const void* row) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
}

// d = a b + c for 16 x 16 by 16 x 8 numbers in the registers of a warp, as PTX's mma.m16n8k16 has them. Volatile: all
// lanes must take part, so no compiler may move it into a branch.
CLA_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&c)[4],
                             Half) {
#if CLA_CAPABILITY >= 80
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

#if CLA_CAPABILITY >= 80
CLA_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&c)[4],
                             Bf16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
#else
// Each lane gathers its two rows and columns.
CLA_CALL float4 gathered_product(float4 d, uint4 a, uint2 b) {
  const int lane = thread_index() % 32, row = lane / 4 * 4, column = lane % 4 * 8;
  const Bf16 type{};
#pragma unroll 1
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t top = __shfl_sync(0xffffffffu, half == 0 ? a.x : a.z, row + t);
      const uint32_t bottom = __shfl_sync(0xffffffffu, half == 0 ? a.y : a.w, row + t);
      const uint32_t left = __shfl_sync(0xffffffffu, half == 0 ? b.x : b.y, column + t);
      const uint32_t right = __shfl_sync(0xffffffffu, half == 0 ? b.x : b.y, column + 4 + t);
      d.x += low(top, type) * low(left, type) + high(top, type) * high(left, type);
      d.y += low(top, type) * low(right, type) + high(top, type) * high(right, type);
      d.z += low(bottom, type) * low(left, type) + high(bottom, type) * high(left, type);
      d.w += low(bottom, type) * low(right, type) + high(bottom, type) * high(right, type);
    }
  }
  return d;
}

CLA_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&c)[4],
                             Bf16) {
  const float4 sums = gathered_product({c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1});
  d[0] = sums.x;
  d[1] = sums.y;
  d[2] = sums.z;
  d[3] = sums.w;
}
#endif

// Copies of kBytes (4 or 16) from global to shared memory, zeros where not `wanted`, that are there after
// `cp_async_wait` and a barrier.
template <int kBytes>
CLA_DEVICE void cp_async(void* to, const void* from, bool wanted) {
#if CLA_CAPABILITY >= 80
  const int bytes = wanted ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
  }
#else
  if constexpr (kBytes == 16) {
    *static_cast<uint4*>(to) = wanted ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
  } else {
    *static_cast<uint32_t*>(to) = wanted ? *static_cast<const uint32_t*>(from) : 0u;
  }
#endif
}
CLA_DEVICE void cp_async_commit() {
#if CLA_CAPABILITY >= 80
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until at most kPending of this thread's groups, the last ones, are unfinished.
template <int kPending>
CLA_DEVICE void cp_async_wait() {
#if CLA_CAPABILITY >= 80
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace cla::cuda

#endif
