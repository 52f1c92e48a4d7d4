// The forward pass.
#include "forward.cuh"

#include "launch.cuh"

namespace cla::cuda {
namespace {

template <class In, bool kNormalize, int kColumnBlocks, bool kAligned>
Kernel<ForwardLaunch> kernel_of(const Device& device) {
  return Instance<forward_kernel<In, kNormalize, kColumnBlocks, kAligned>, ForwardLaunch,
                  Shape<In, Job::forward, kNormalize, kColumnBlocks, kAligned, 75>,
                  Shape<In, Job::forward, kNormalize, kColumnBlocks, kAligned, 80>>::kernel(device);
}

Kernel<ForwardLaunch> kernel_of(const ForwardLaunch& s, const Problem& p, const Device& device) {
  return with_type(p.dtype, [&](auto number) {
    using In = decltype(number);
    const auto visit = [&]<int kColumnBlocks, bool kAligned>() {
      return p.normalize ? kernel_of<In, true, kColumnBlocks, kAligned>(device)
                         : kernel_of<In, false, kColumnBlocks, kAligned>(device);
    };
    return with_columns({&s.inputs[kK], &s.inputs[kV], &s.inputs[kQ], &s.out}, visit);
  });
}

ForwardLaunch launch_of(const Problem& p, const Outputs& o) {
  ForwardLaunch s;
  fill(s, p, o.inverse, o.kept, false);
  s.out = rows_of(p, o.out, p.width);
  s.final = state_of(p, o.state, false);
  s.eps = static_cast<float>(p.eps);
  return s;
}

}  // namespace

int64_t forward_scratch(const Problem& p, const Outputs& o, const Device& device) {
  ForwardLaunch s = launch_of(p, o);
  return plan(s, kernel_of(s, p, device).needs, device).sums;
}

const char* forward(const Problem& p, const Outputs& o, const Device& device, float* scratch, void* stream) {
  ForwardLaunch s = launch_of(p, o);
  const Kernel<ForwardLaunch> kernel = kernel_of(s, p, device);
  const Plan found = plan(s, kernel.needs, device);
  return launch(s, found, kernel, device, scratch, stream);
}

}  // namespace cla::cuda
