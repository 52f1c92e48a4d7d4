// The backward pass with decays of float32.
#include "backward_wide.cuh"
#include "instances.cuh"

namespace cla::cuda {

template Kernel<BackwardLaunch> kernel_of_type<DecayedBackward, float>(const Problem&,
    std::initializer_list<const Rows*>, const Device&);

}  // namespace cla::cuda
