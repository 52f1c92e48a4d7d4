// One instance of the CUDA kernels, which tests/operator/ptx runs.
#include "backward_wide.cuh"
#include "forward.cuh"

namespace cla::cuda {

template __global__ void forward_kernel<CLA_TYPE, CLA_NORMALIZE, CLA_COLUMN_BLOCKS, CLA_ALIGNED, CLA_DECAYED>(
    CLA_PARAMETER ForwardLaunch);
template __global__ void backward_kernel<CLA_TYPE, CLA_NORMALIZE, CLA_COLUMN_BLOCKS, CLA_ALIGNED, CLA_DECAYED>(
    CLA_PARAMETER BackwardLaunch);

}  // namespace cla::cuda
