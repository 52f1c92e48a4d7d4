// The backward pass of float16.
#include "backward_wide.cuh"
#include "instances.cuh"

namespace cla::cuda {

template Kernel<BackwardLaunch> kernel_of_type<Backward, Half>(const Problem&, std::initializer_list<const Rows*>,
                                                               const Device&);

}  // namespace cla::cuda
