// The gradients: that of q, then those of k and v.
#include "launch.cuh"

namespace cla::cuda {
namespace {

Plan plan_of(const Problem& p, const Scans& s, Normaliser normaliser, const Device& device) {
  const Kernel kernel = p.normalize ? backward_kernel(s, p.dtype, normaliser, device)
                                    : forward_kernel(s, p.dtype, false, device);
  return plan(s, kernel, device);
}

// Writes the slopes that the other gradients read.
Plan dq_plan(const Problem& p, const Gradients& g, const Device& device, float* slopes) {
  Scans s = scans_of(p);
  Scan& scan = s.scan[0];
  scan.a = rows_of(p, g.grad_out, p.width, false);
  scan.b = rows_of(p, p.v, p.width, false);
  scan.c = rows_of(p, p.k, p.depth, false);
  scan.queries = rows_of(p, p.q, p.depth, false);
  scan.out = rows_of(p, g.q, p.depth, false);
  scan.depth = static_cast<int>(p.width);
  scan.width = static_cast<int>(p.depth);
  scan.vector = p.normalize;
  scan.initial = state_of(p, p.state, true);
  scan.weights = static_cast<float*>(const_cast<void*>(g.inverse));
  scan.slopes = slopes;
  return plan_of(p, s, Normaliser::dq, device);
}

// From the last row to the first.
Plan dkdv_plan(const Problem& p, const Gradients& g, const Device& device, float* slopes) {
  Scans s = scans_of(p);
  s.count = 2;
  Scan &keys = s.scan[0], &values = s.scan[1];
  const Rows q = rows_of(p, p.q, p.depth, true), grad_out = rows_of(p, g.grad_out, p.width, true);
  keys.a = rows_of(p, p.v, p.width, true);
  keys.b = grad_out;
  keys.c = q;
  keys.out = rows_of(p, g.k, p.depth, true);
  keys.depth = static_cast<int>(p.width);
  keys.width = static_cast<int>(p.depth);
  keys.vector = p.normalize;
  keys.initial = state_of(p, g.grad_state, true);
  keys.final = state_of(p, g.state, true);
  keys.slopes = slopes;
  values.a = rows_of(p, p.k, p.depth, true);
  values.b = q;
  values.c = grad_out;
  values.out = rows_of(p, g.v, p.width, true);
  values.depth = static_cast<int>(p.depth);
  values.width = static_cast<int>(p.width);
  values.initial = state_of(p, g.grad_state, false);
  keys.weights = values.weights = static_cast<float*>(const_cast<void*>(g.inverse));
  return plan_of(p, s, Normaliser::dkdv, device);
}

int64_t slopes_size(const Problem& p) { return p.normalize ? p.batch * p.heads * p.rows : 0; }

}  // namespace

Kernel backward_kernel(const Scans& s, Dtype dtype, Normaliser normaliser, const Device& device) {
  return with_type(dtype, [&](auto number) {
    using In = decltype(number);
    return normaliser == Normaliser::dq ? instance_for<In, Normaliser::dq>(s, device)
                                        : instance_for<In, Normaliser::dkdv>(s, device);
  });
}

int64_t backward_scratch(const Problem& p, const Gradients& g, const Device& device) {
  const int64_t dq = dq_plan(p, g, device, nullptr).sums, dkdv = dkdv_plan(p, g, device, nullptr).sums;
  return slopes_size(p) + (dq > dkdv ? dq : dkdv);
}

const char* backward(const Problem& p, const Gradients& g, const Device& device, float* scratch, void* stream) {
  float* const sums = scratch + slopes_size(p);
  const Plan dq = dq_plan(p, g, device, scratch), dkdv = dkdv_plan(p, g, device, scratch);
  if (!dq.fits || !dkdv.fits) return kTooLarge;
  if (const char* const error = launch(dq, device, sums, stream)) return error;
  return launch(dkdv, device, sums, stream);
}

}  // namespace cla::cuda
