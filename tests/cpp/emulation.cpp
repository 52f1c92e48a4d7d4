// The CUDA kernels' host code on a CPU, called with arrays: built with the sources in csrc/cuda and with
// emulated_blocks.cpp into one shared object, which tests/operator/test_cuda_kernel.py calls.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "decoding.h"
#include "device.cuh"
#include "fused.h"
#include "guarded.h"
#include "plan.h"

// An array of the caller: `bytes` from `data` on, strides in elements (batch, head, row).
struct HostArray {
  void* data;
  int64_t bytes, batch, head, row;
};

namespace emulation {

// A caller's array, moved between guard pages for the time of a call.
class Moved {
 public:
  Moved(void* data, int64_t bytes, bool at_end) : from_(data), bytes_(bytes) {
    if (data == nullptr) return;
    guarded_ = std::make_unique<Guarded>(bytes, at_end);
    std::memcpy(guarded_->data, data, bytes);
  }
  void* data() const { return guarded_ ? guarded_->data : nullptr; }
  void back() const {
    if (guarded_) std::memcpy(from_, guarded_->data, bytes_);
  }

 private:
  void* from_;
  int64_t bytes_;
  std::unique_ptr<Guarded> guarded_;
};

// All of a caller's arrays.
class Arrays {
 public:
  Arrays(const HostArray* arrays, int count, bool at_end) : arrays_(arrays) {
    for (int x = 0; x < count; ++x) {
      moved_.push_back(std::make_unique<Moved>(arrays[x].data, arrays[x].bytes, at_end));
    }
  }
  void* operator[](int x) const { return moved_[x]->data(); }
  float* floats(int x) const { return static_cast<float*>(moved_[x]->data()); }
  cla::Array array(int x) const {
    return {moved_[x]->data(), arrays_[x].batch, arrays_[x].head, arrays_[x].row};
  }
  void back() const {
    for (const auto& x : moved_) x->back();
  }

 private:
  const HostArray* arrays_;
  std::vector<std::unique_ptr<Moved>> moved_;
};

// A decoding step's first six arrays.
template <class Step>
void set_tokens(Step& s, const int64_t* shape, const Arrays& arrays) {
  s.batch = shape[0];
  s.heads = shape[1];
  s.dim = shape[2];
  s.q = arrays.floats(0);
  s.k = arrays.floats(1);
  s.v = arrays.floats(2);
  s.turn.direction = arrays.floats(3);
  s.turn.theta = static_cast<const double*>(arrays[4]);
  s.turn.positions = static_cast<const int64_t*>(arrays[5]);
}

}  // namespace emulation

namespace {

cla::Problem problem_of(const int64_t* shape, int dtype, int normalize) {
  cla::Problem p;
  p.batch = shape[0];
  p.heads = shape[1];
  p.rows = shape[2];
  p.depth = shape[3];
  p.width = shape[4];
  p.dtype = static_cast<cla::Dtype>(dtype);
  p.normalize = normalize != 0;
  p.eps = 1e-6;
  return p;
}

}  // namespace

// Forward and backward. The shape ends with the heads of q that share one of k. The arrays: q, k, v, state, out, final
// state, inverse, grad_out, grad_state, the gradients of q, k, v and the state, the bounds of packed sequences, decays
// and the gradient of their logarithms. Returns null or an error.
extern "C" const char* emulate(const int64_t* shape, int dtype, int normalize, double scale, HostArray* arrays,
                               const int* device, int order, int at_end) {
  using namespace cla;
  using namespace cla::cuda;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 16, at_end != 0);
  const Device gpu{0, device[0], device[1], device[2]};
  Problem p = problem_of(shape, dtype, normalize);
  p.q = moved.array(0);
  p.k = moved.array(1);
  p.v = moved.array(2);
  p.state = moved[3];
  p.offsets = static_cast<const int32_t*>(moved[13]);
  p.sequences = arrays[13].bytes / 4 - 1;
  p.decay = moved.array(14);
  p.scale = scale;
  const int64_t group = std::max<int64_t>(shape[5], 1);
  p.k.group = p.v.group = p.decay.group = group;
  const int64_t size = kept_states(p) * p.depth * (p.width + p.normalize);
  const emulation::Guarded kept(4 * p.batch * (p.heads / group) * size, true);
  const Outputs outputs{moved.array(4), moved[5], moved[6], kept.data};
  std::optional<emulation::Guarded> scratch;
  const Allocate allocate = [&](int64_t numbers) {
    return reinterpret_cast<float*>(scratch.emplace(4 * numbers, true).data);
  };
  const char* error = forward(p, outputs, gpu, allocate, nullptr);
  if (error == nullptr) {
    const Gradients g{moved.array(7),  moved[8],        moved[6], moved.array(9),
                      moved.array(10), moved.array(11), moved[12], kept.data,
                      moved.array(4),  moved[15]};
    error = backward(p, g, gpu, allocate, nullptr);
  }
  moved.back();
  return error;
}

// One decoding position. The shape ends with the heads of q that share one of k. The arrays: q, k, v, state, out and the
// new state, contiguous, and decays.
extern "C" const char* emulate_step(const int64_t* shape, int dtype, int normalize, HostArray* arrays, int order,
                                    int at_end) {
  using namespace cla;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 7, at_end != 0);
  Problem p = problem_of(shape, dtype, normalize);
  p.q = moved.array(0);
  p.k = moved.array(1);
  p.v = moved.array(2);
  p.k.group = shape[5];
  p.state = moved[3];
  p.decay = moved.array(6);
  const char* const error = cuda::step(p, moved[4], moved[5], cuda::Device{}, nullptr);
  moved.back();
  return error;
}

// NormAttention's step. The arrays: q, k, v, direction, theta, positions, state, out and the new state, contiguous.
extern "C" const char* emulate_norm_step(const int64_t* shape, int one_plus, HostArray* arrays, int order, int at_end) {
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 9, at_end != 0);
  cla::NormStep s;
  s.one_plus = one_plus != 0;
  emulation::set_tokens(s, shape, moved);
  s.state = moved.floats(6);
  s.out = moved.floats(7);
  s.state_out = moved.floats(8);
  const char* const error = cla::cuda::norm_step(s, cla::cuda::Device{}, nullptr);
  moved.back();
  return error;
}

// DiagAttention's step. The arrays: q, k, v, direction, theta, places, keys, values and out, contiguous.
extern "C" const char* emulate_block_step(const int64_t* shape, int softmax, float scale, HostArray* arrays, int order,
                                          int at_end) {
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 9, at_end != 0);
  cla::BlockStep s;
  s.softmax = softmax != 0;
  emulation::set_tokens(s, shape, moved);
  s.turn.scale = scale;
  s.size = shape[3];
  s.keys = moved.floats(6);
  s.values = moved.floats(7);
  s.out = moved.floats(8);
  const char* const error = cla::cuda::block_step(s, cla::cuda::Device{}, nullptr);
  moved.back();
  return error;
}

// RMSNorm and its derivative. The arrays: x, grad, out, root and grad_x, contiguous.
extern "C" const char* emulate_rms_norm(const int64_t* shape, int dtype, HostArray* arrays, int order, int at_end) {
  using namespace cla;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 5, at_end != 0);
  const auto type = static_cast<Dtype>(dtype);
  const cuda::RmsNorm s{shape[0], shape[1], type, 1e-8, moved[0], moved[2], moved.floats(3)};
  const char* error = cuda::rms_norm(s, cuda::Device{}, nullptr);
  if (error == nullptr) {
    const cuda::RmsNormGradient g{shape[0], shape[1], type, 1e-8, moved[1], moved[2], moved.floats(3), moved[4]};
    error = cuda::rms_norm_backward(g, cuda::Device{}, nullptr);
  }
  moved.back();
  return error;
}

// Dropout, residual and RMSNorm with their derivative. The arrays, contiguous: x, y, seed, sum, out, root, the gradients
// of sum and out, grad_x and grad_y; without a seed there is no grad_y.
extern "C" const char* emulate_residual(const int64_t* shape, int dtype, double p, HostArray* arrays, int order,
                                        int at_end) {
  using namespace cla;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 10, at_end != 0);
  Dropout d{static_cast<const int64_t*>(moved[2]), static_cast<uint32_t>(p * 4294967296.0 + 0.5), 1 / (1 - p)};
  const auto type = static_cast<Dtype>(dtype);
  const Residual s{shape[0], shape[1], type, 1e-8, d, moved[0], moved[1], moved[3], moved[4], moved[5]};
  const char* error = cuda::residual(s, cuda::Device{}, nullptr);
  if (error == nullptr) {
    const ResidualGradient g{shape[0], shape[1], type,     1e-8,     d,       moved[6],
                             moved[7], moved[4], moved[5], moved[8], moved[9]};
    error = cuda::residual_gradient(g, cuda::Device{}, nullptr);
  }
  moved.back();
  return error;
}

// The gated product and its derivative. The arrays: inputs, grad, out, grad_inputs and out again; shape: rows, width,
// and the strides of inputs, grad and grad_inputs.
extern "C" const char* emulate_gated(const int64_t* shape, int dtype, HostArray* arrays, int order, int at_end) {
  using namespace cla;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 5, at_end != 0);
  const auto type = static_cast<Dtype>(dtype);
  const Gated s{shape[0], shape[1], type, moved[0], shape[2], moved[2]};
  const char* error = cuda::gated(s, cuda::Device{}, nullptr);
  if (error == nullptr) {
    const GatedGradient g{shape[0], shape[1], type, moved[0], moved[1], shape[2], shape[3], moved[3], shape[4],
                          moved[4]};
    error = cuda::gated_gradient(g, cuda::Device{}, nullptr);
  }
  moved.back();
  return error;
}

// Features and their derivative. The arrays: qkv, direction, theta (float64), q, k, the gradients of q, k and v, those
// of qkv, and the rows of theta's.
extern "C" const char* emulate_features(const int64_t* shape, int dtype, int map, double scale, HostArray* arrays,
                                        int order, int at_end) {
  using namespace cla;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 10, at_end != 0);
  const Joined x{shape[0], shape[1], shape[2], shape[3], static_cast<Dtype>(dtype), moved[0]};
  const Rotation r{moved[1], moved[2], Dtype::f32, Dtype::f64, scale};
  const char* error = cuda::features({x, static_cast<Map>(map), r, moved[3], moved[4]}, cuda::Device{}, nullptr);
  if (error == nullptr) {
    const FeaturesGradient g{x,        static_cast<Map>(map), r,       moved.array(5), moved.array(6), moved.array(7),
                             moved[8], moved[9]};
    error = cuda::features_gradient(g, cuda::Device{}, nullptr);
  }
  moved.back();
  return error;
}

// Blocks and their derivative. The arrays: qkv, direction, theta (float64), padding, seed, out, the gradients of out and
// qkv, and the rows of theta's; shape: length, batch, heads, dim and the size of a block.
extern "C" const char* emulate_blocks(const int64_t* shape, int dtype, int causal, int softmax, double scale, double p,
                                      HostArray* arrays, int order, int at_end) {
  using namespace cla;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 9, at_end != 0);
  Blocks s;
  s.inputs = {shape[0], shape[1], shape[2], shape[3], static_cast<Dtype>(dtype), moved[0]};
  s.rotation = {moved[1], moved[2], Dtype::f32, Dtype::f64, scale};
  s.size = shape[4];
  s.causal = causal != 0;
  s.softmax = softmax != 0;
  s.padding = static_cast<const bool*>(moved[3]);
  s.dropout = {static_cast<const int64_t*>(moved[4]), static_cast<uint32_t>(p * 4294967296.0 + 0.5), 1 / (1 - p)};
  s.out = moved[5];
  const cuda::Device device{0, 80, 1, 232448};
  const char* error = cuda::blocks(s, device, nullptr);
  if (error == nullptr) error = cuda::blocks_gradient({s, moved[6], moved[7], moved[8]}, device, nullptr);
  moved.back();
  return error;
}

extern "C" int64_t blocks_bytes(int64_t size, int64_t dim) { return cla::cuda::blocks_bytes(size, dim); }

// Segments of heads of 64 columns with a kernel of which `blocks` fit a multiprocessor.
extern "C" int planned_segments(int heads, int length, int multiprocessors, int blocks) {
  using namespace cla::cuda;
  static int fitting;
  fitting = blocks;
  ForwardLaunch s;
  s.heads = heads;
  s.length = length;
  s.kept_rows = 512;
  s.inputs[kV].columns = 64;
  Needs needs;
  needs.blocks = [](const Device&, int, int64_t) { return fitting; };
  return plan(s, needs, Device{0, 80, multiprocessors, 100'000}).fits ? s.segments : 0;
}
