// The backward pass with decays of bfloat16.
#include "backward_wide.cuh"
#include "instances.cuh"

namespace cla::cuda {

template Kernel<BackwardLaunch> kernel_of_type<DecayedBackward, Bf16>(const Problem&,
    std::initializer_list<const Rows*>, const Device&);

}  // namespace cla::cuda
