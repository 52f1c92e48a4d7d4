// The backward pass.
#include "backward_wide.cuh"

#include "launch.cuh"

namespace cla::cuda {
namespace {

Kernel<BackwardLaunch> kernel_of(const BackwardLaunch& s, const Problem& p, const Device& device) {
  const Rows* const in = s.inputs;
  const std::initializer_list<const Rows*> arrays = {&in[kK],   &in[kV],   &in[kQ],  &in[kGrad],
                                                     &s.grad_q, &s.grad_k, &s.grad_v};
  return p.decay.data != nullptr ? kernel_of<DecayedBackward>(p, arrays, device)
                                 : kernel_of<Backward>(p, arrays, device);
}

BackwardLaunch launch_of(const Problem& p, const Gradients& g) {
  BackwardLaunch s;
  fill(s, p, g.inverse, const_cast<void*>(g.kept), true);
  s.inputs[kGrad] = rows_of(p, g.grad_out, p.width);
  s.grad_q = rows_of(p, g.q, p.depth);
  s.grad_k = rows_of(p, g.k, p.depth);
  s.grad_v = rows_of(p, g.v, p.width);
  s.grad_final = shared(p, state_of(p, g.grad_state, true), true);
  s.grad_initial = state_of(p, g.state, true);
  s.grad_decay = static_cast<float*>(g.log_decay);
  s.eps = static_cast<float>(p.eps);
  if (is_wide(p)) {
    s.depth_parts = parts_of(p.depth);
    share_out(s, 2 * s.depth_parts + parts_of(p.width));
  }
  return s;
}

// The slopes come first in scratch memory.
int64_t slopes_size(const Problem& p) {
  return p.normalize ? (p.batch * p.heads * p.rows + 31) / 32 * 32 : 0;  // what follows begins at 128 bytes
}

}  // namespace

const char* backward(const Problem& p, const Gradients& g, const Device& device, const Allocate& allocate,
                     void* stream) {
  BackwardLaunch s = launch_of(p, g);
  const Kernel<BackwardLaunch> kernel = kernel_of(s, p, device);
  const Plan found = plan(s, kernel.needs, device);
  s.slopes = allocate(slopes_size(p) + found.tickets + found.sums);
  if (is_wide(p) && p.normalize && found.fits) {
    if (const char* const error = write_slopes(p, g, s.slopes, device, stream)) return error;
  }
  return launch(s, found, kernel, device, s.slopes + slopes_size(p), stream);
}

}  // namespace cla::cuda
