// The instances of the CUDA kernels that tests/operator/test_cuda_resources.py looks at.
#include "backward_wide.cuh"
#include "forward.cuh"

namespace cla::cuda {

#define CLA_FORWARD(normalize, column_blocks) \
  template __global__ void forward_kernel<CLA_TYPE, normalize, column_blocks, true>(CLA_PARAMETER ForwardLaunch)
#define CLA_BACKWARD(normalize, column_blocks) \
  template __global__ void backward_kernel<CLA_TYPE, normalize, column_blocks, true>(CLA_PARAMETER BackwardLaunch)

CLA_FORWARD(false, 4);
CLA_FORWARD(true, 4);
CLA_BACKWARD(false, 4);
CLA_BACKWARD(true, 4);
CLA_BACKWARD(true, 8);
template __global__ void forward_kernel<CLA_TYPE, false, 4, true, true>(CLA_PARAMETER ForwardLaunch);
template __global__ void backward_kernel<CLA_TYPE, false, 4, true, true>(CLA_PARAMETER BackwardLaunch);

}  // namespace cla::cuda
