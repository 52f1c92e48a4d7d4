// Whether the kernels can run on a device. extension.py asks through ctypes.
#include <cuda_runtime_api.h>

namespace {

// Compiled for the same architectures as the kernels, so it has an image wherever they have one.
__global__ void probe() {}

}  // namespace

// For the current device: an empty string, or why no kernel can run (no image for it, a driver older than the
// runtime linked in here).
extern "C" __attribute__((visibility("default"))) const char* cla_cuda_unavailable() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe));
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // or the next launch would report this error as its own
  return cudaGetErrorString(error);
}
