// A CUDA runtime whose device answers as the test wants: `fake_error` is what asking for a kernel gives, and
// `fake_pending` the error that a later call of the runtime would report.
#pragma once

#include <atomic>
#include <cstddef>

#define __global__

enum cudaError_t { cudaSuccess = 0, cudaErrorNoKernelImageForDevice = 209 };
struct cudaFuncAttributes {};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = void*;
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern "C" {
cudaError_t fake_error = cudaSuccess, fake_pending = cudaSuccess;
int fake_questions = 0, fake_shared_bytes = 0;
std::atomic<int> fake_opt_ins{0}, fake_launches{0};
}

inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  ++fake_questions;
  return fake_pending = fake_error;
}
inline cudaError_t cudaGetLastError() {
  const cudaError_t error = fake_pending;
  fake_pending = cudaSuccess;
  return error;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNoKernelImageForDevice ? "no kernel image is available for execution on the device"
                                                  : "no error";
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int shared_bytes) {
  ++fake_opt_ins;
  fake_shared_bytes = shared_bytes;
  return fake_pending = fake_error;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int, size_t shared_bytes) {
  ++fake_questions;
  *blocks = static_cast<int>(100'000 / shared_bytes);
  return fake_pending = fake_error;
}
inline cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return fake_pending = fake_error; }
inline cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  ++fake_launches;
  return fake_pending = fake_error;
}
