// The forward pass, and the kernel that all scans without a normaliser share.
#include "launch.cuh"

namespace cla::cuda {
namespace {

Plan forward_plan(const Problem& p, const Outputs& o, const Device& device) {
  Scans s = scans_of(p);
  Scan& scan = s.scan[0];
  scan.a = rows_of(p, p.q, p.depth, false);
  scan.b = rows_of(p, p.k, p.depth, false);
  scan.c = rows_of(p, p.v, p.width, false);
  scan.out = rows_of(p, o.out, p.width, false);
  scan.depth = static_cast<int>(p.depth);
  scan.width = static_cast<int>(p.width);
  scan.vector = p.normalize;
  scan.initial = state_of(p, p.state, false);
  scan.final = state_of(p, o.state, false);
  scan.weights = static_cast<float*>(o.inverse);
  return plan(s, forward_kernel(s, p.dtype, p.normalize, device), device);
}

}  // namespace

Kernel forward_kernel(const Scans& s, Dtype dtype, bool normalize, const Device& device) {
  return with_type(dtype, [&](auto number) {
    using In = decltype(number);
    return normalize ? instance_for<In, Normaliser::forward>(s, device)
                     : instance_for<In, Normaliser::none>(s, device);
  });
}

int64_t forward_scratch(const Problem& p, const Outputs& o, const Device& device) {
  return forward_plan(p, o, device).sums;
}

const char* forward(const Problem& p, const Outputs& o, const Device& device, float* scratch, void* stream) {
  return launch(forward_plan(p, o, device), device, scratch, stream);
}

}  // namespace cla::cuda
