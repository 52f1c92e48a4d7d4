// The forward pass with decays of float16.
#include "forward.cuh"
#include "instances.cuh"

namespace cla::cuda {

template Kernel<ForwardLaunch> kernel_of_type<DecayedForward, Half>(const Problem&,
    std::initializer_list<const Rows*>, const Device&);

}  // namespace cla::cuda
