// The CUDA runtime's part in a launch: plain C++, which a test compiles for a runtime that fails on request.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "attention.h"

namespace cla::cuda {

constexpr int kMaxDevices = 64;

// Null or what went wrong. A failed call leaves its error behind for whoever asks next: it is taken away.
inline const char* cleared(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

// Lets the kernel's blocks ask for all shared memory that the device has for one, the first time on each device.
// Threads that come here at once do the same.
template <auto kKernel>
const char* opt_in(const Device& device) {
  static std::atomic<bool> done[kMaxDevices];
  std::atomic<bool>* const flag = device.index < kMaxDevices ? &done[device.index] : nullptr;
  if (flag != nullptr && flag->load(std::memory_order_acquire)) return nullptr;
  const char* const error = cleared(
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_bytes));
  if (error == nullptr && flag != nullptr) flag->store(true, std::memory_order_release);
  return error;
}

// Blocks of the kernel that a multiprocessor holds at once, asked for once; one if the question fails, for the
// launch to say why.
template <auto kKernel>
int resident_blocks(const Device& device, int threads, int stages, int64_t shared_bytes) {
  static std::atomic<int> known[kMaxDevices][kMaxStages + 1];
  std::atomic<int>* const answer = device.index < kMaxDevices ? &known[device.index][stages] : nullptr;
  if (answer != nullptr && *answer > 0) return *answer;
  int blocks = 0;
  if (opt_in<kKernel>(device) != nullptr ||
      cleared(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kKernel, threads, shared_bytes)) != nullptr) {
    return 1;
  }
  if (answer != nullptr) *answer = blocks;
  return blocks;
}

// Zeros, before what the stream runs next; null or what went wrong.
inline const char* clear(void* data, int64_t bytes, void* stream) {
  return cleared(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)));
}

// Launches the kernel on blocks x segments blocks of threads; null or what went wrong.
template <auto kKernel, class Parameter>
const char* launch_kernel(const Parameter& parameter, const Device& device, int64_t blocks, int segments,
                          int threads, int64_t shared_bytes, void* stream) {
  if (const char* const error = opt_in<kKernel>(device)) return error;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(segments));
  void* arguments[] = {const_cast<Parameter*>(&parameter)};
  return cleared(cudaLaunchKernel(reinterpret_cast<const void*>(kKernel), grid, dim3(threads), arguments,
                                  static_cast<size_t>(shared_bytes), static_cast<cudaStream_t>(stream)));
}

}  // namespace cla::cuda
