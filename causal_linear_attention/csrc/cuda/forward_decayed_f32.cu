// The forward pass with decays of float32.
#include "forward.cuh"
#include "instances.cuh"

namespace cla::cuda {

template Kernel<ForwardLaunch> kernel_of_type<DecayedForward, float>(const Problem&,
    std::initializer_list<const Rows*>, const Device&);

}  // namespace cla::cuda
