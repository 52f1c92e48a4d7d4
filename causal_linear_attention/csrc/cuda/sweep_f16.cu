#include "launcher.cuh"

template struct cla_cuda::Launcher<cla_cuda::Half>;
