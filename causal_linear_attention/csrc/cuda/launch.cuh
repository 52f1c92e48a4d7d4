// Launching one instance of a family's kernel. A family has a parameter type L, a job and kKernel<type, normalize,
// column blocks, aligned>.
#pragma once

#include <initializer_list>

#include "mma.cuh"
#include "plan.h"

namespace cla::cuda {

// The instance for this problem and the narrowest heads that hold these rows. That of each type is compiled in a
// file of its own (<family>_<type>.cu, see instances.cuh), so that they are compiled side by side.
template <class Family, class In>
Kernel<typename Family::L> kernel_of_type(const Problem& p, std::initializer_list<const Rows*> arrays,
                                          const Device& device);

template <class Family>
Kernel<typename Family::L> kernel_of(const Problem& p, std::initializer_list<const Rows*> arrays,
                                     const Device& device) {
  return with_type(p.dtype,
                   [&](auto number) { return kernel_of_type<Family, decltype(number)>(p, arrays, device); });
}

template <class L>
const char* launch(L s, const Plan& p, const Kernel<L>& kernel, const Device& device, float* scratch, void* stream) {
  if (!p.fits) return kTooLarge;
  if (s.heads == 0) return nullptr;
  if (s.segments > 1) {
    s.tickets = reinterpret_cast<int*>(scratch);
    s.sums = scratch + p.tickets;
    if (const char* const error = clear(s.tickets, p.tickets * 4, stream)) return error;
  }
  return kernel.launch(s, device, p.shared_bytes, stream);
}

}  // namespace cla::cuda
