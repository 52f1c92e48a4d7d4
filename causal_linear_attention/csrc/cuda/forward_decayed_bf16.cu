// The forward pass with decays of bfloat16.
#include "forward.cuh"
#include "instances.cuh"

namespace cla::cuda {

template Kernel<ForwardLaunch> kernel_of_type<DecayedForward, Bf16>(const Problem&,
    std::initializer_list<const Rows*>, const Device&);

}  // namespace cla::cuda
