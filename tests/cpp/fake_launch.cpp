// Launches of a kernel that does nothing on the runtime of fake_cuda/, for tests/operator/test_cuda_runtime.py.
#include "runtime.h"

namespace {

void kernel(int) {}

cla::cuda::Device device(int index) {
  cla::cuda::Device result;
  result.index = index;
  result.shared_bytes = 99'000;
  return result;
}

}  // namespace

extern "C" const char* fake_launch(int index, int shared_bytes) {
  return cla::cuda::launch_kernel<kernel>(1, device(index), 1, 1, 32, shared_bytes, nullptr);
}
extern "C" const char* fake_clear() { return cla::cuda::clear(nullptr, 0, nullptr); }
extern "C" int fake_blocks(int index, int stages, int shared_bytes) {
  return cla::cuda::resident_blocks<kernel>(device(index), 32, stages, shared_bytes);
}
