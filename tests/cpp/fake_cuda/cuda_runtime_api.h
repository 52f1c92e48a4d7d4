// A CUDA runtime whose device answers as the test wants: `fake_error` is what asking for a kernel gives, and
// `fake_pending` the error that a later call of the runtime would report.
#pragma once

#define __global__

enum cudaError_t { cudaSuccess = 0, cudaErrorNoKernelImageForDevice = 209 };
struct cudaFuncAttributes {};

extern "C" {
cudaError_t fake_error = cudaSuccess, fake_pending = cudaSuccess;
int fake_questions = 0;
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
