// The instances of the CUDA kernel that tests/operator/test_cuda_resources.py looks at.
#include "launch.cuh"

namespace cla::cuda {

#define CLA_INSTANCE(normaliser, column_blocks) \
  template CLA_INSTANCE_OF(normaliser, column_blocks)(CLA_PARAMETER Scans)
#define CLA_INSTANCE_OF(normaliser, column_blocks) \
  __global__ void scan_kernel<CLA_TYPE, Normaliser::normaliser, column_blocks, true, false>

CLA_INSTANCE(none, 4);
CLA_INSTANCE(none, 8);
CLA_INSTANCE(forward, 4);
CLA_INSTANCE(dq, 4);
CLA_INSTANCE(dkdv, 4);

}  // namespace cla::cuda
