#include "launcher.cuh"

template struct cla_cuda::Launcher<float>;
