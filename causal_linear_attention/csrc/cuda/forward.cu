// The forward pass.
#include "forward.cuh"

#include "launch.cuh"

namespace cla::cuda {
namespace {

Kernel<ForwardLaunch> kernel_of(const ForwardLaunch& s, const Problem& p, const Device& device) {
  const std::initializer_list<const Rows*> arrays = {&s.inputs[kK], &s.inputs[kV], &s.inputs[kQ], &s.out};
  return p.decay.data != nullptr ? kernel_of<DecayedForward>(p, arrays, device) : kernel_of<Forward>(p, arrays, device);
}

ForwardLaunch launch_of(const Problem& p, const Outputs& o) {
  ForwardLaunch s;
  fill(s, p, o.inverse, o.kept, false);
  s.out = rows_of(p, o.out, p.width);
  s.final = shared(p, state_of(p, o.state, false), true);
  s.eps = static_cast<float>(p.eps);
  s.scale = static_cast<float>(p.scale);
  if (is_wide(p)) share_out(s, parts_of(p.width));
  return s;
}

}  // namespace

const char* forward(const Problem& p, const Outputs& o, const Device& device, const Allocate& allocate,
                    void* stream) {
  ForwardLaunch s = launch_of(p, o);
  const Kernel<ForwardLaunch> kernel = kernel_of(s, p, device);
  const Plan found = plan(s, kernel.needs, device);
  return launch(s, found, kernel, device, allocate(found.tickets + found.sums), stream);
}

}  // namespace cla::cuda
