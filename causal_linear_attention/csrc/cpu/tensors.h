// What the CPU's bindings share: torch's threads, and tensors made without a search by name.
#pragma once

#include "../bindings.h"
#include "forward_backward.h"

namespace cla {

inline Threads torch_threads() {
  Threads threads;
  threads.count = static_cast<int>(torch::stable::get_num_threads());
  threads.run = [](int64_t count, void (*body)(int64_t, int64_t, void*), void* context) {
    TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, count, 1, body, context));
  };
  return threads;
}

// A new contiguous tensor. torch::stable::new_empty looks its operator up by name, which takes longer than a
// step itself.
template <size_t N>
Tensor empty(const int64_t (&sizes)[N], ScalarType dtype) {
  int64_t strides[N];
  int64_t stride = 1;
  for (size_t i = N; i-- > 0; stride *= sizes[i] > 0 ? sizes[i] : 1) strides[i] = stride;
  const int32_t type = dtype == ScalarType::Double     ? aoti_torch_dtype_float64()
                       : dtype == ScalarType::Half     ? aoti_torch_dtype_float16()
                       : dtype == ScalarType::BFloat16 ? aoti_torch_dtype_bfloat16()
                                                       : aoti_torch_dtype_float32();
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(N), sizes, strides, type,
                                                         aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}

}  // namespace cla
