// The forward pass of float32.
#include "forward.cuh"
#include "instances.cuh"

namespace cla::cuda {

template Kernel<ForwardLaunch> kernel_of_type<Forward, float>(const Problem&, std::initializer_list<const Rows*>,
                                                              const Device&);

}  // namespace cla::cuda
