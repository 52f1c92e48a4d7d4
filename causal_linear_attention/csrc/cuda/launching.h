// What the CUDA bindings share: the device and the stream of a tensor, and errors of launches.
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>

#include "../bindings.h"
#include "attention.h"

namespace cla {

using cuda::Device;

inline constexpr const char* kDtypes = "expected float32, bfloat16 or float16 on CUDA";
inline constexpr int64_t kMost = int64_t{1} << 28;

inline int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&value, name, device);
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  return value;
}

inline Device device_of(const Tensor& x) {
  const int index = x.get_device_index();
  return {index,
          10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
              attribute(cudaDevAttrComputeCapabilityMinor, index),
          attribute(cudaDevAttrMultiProcessorCount, index),
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index)};
}

inline void* stream_of(const Tensor& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return stream;
}

inline void check_launch(const char* error) {
  if (error != nullptr) throw std::runtime_error(std::string("the CUDA kernel was not launched: ") + error);
}

}  // namespace cla
