// Runs the CUDA kernels on a CPU, block after block: see emulated_device.h. Built with the sources in
// csrc/cuda into one shared object, which tests/operator/test_cuda_kernel.py calls.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "attention.h"
#include "device.cuh"
#include "plan.h"

// An array of the caller: `bytes` from `data` on, strides in elements (batch, head, row).
struct HostArray {
  void* data;
  int64_t bytes, batch, head, row;
};

namespace emulation {
namespace {

// Bytes between two pages that nobody may touch: they begin behind the first or end before the second.
class Guarded {
 public:
  Guarded(int64_t bytes, bool at_end) : page_(sysconf(_SC_PAGESIZE)) {
    pages_ = (bytes + page_ - 1) / page_ * page_;
    start_ = static_cast<unsigned char*>(
        mmap(nullptr, pages_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start_ == MAP_FAILED || mprotect(start_ + page_, pages_, PROT_READ | PROT_WRITE) != 0) std::abort();
    data = start_ + page_ + (at_end ? pages_ - bytes : 0);
    std::memset(start_ + page_, 0xff, pages_);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(start_, pages_ + 2 * page_); }
  unsigned char* data;

 private:
  int64_t page_, pages_;
  unsigned char* start_;
};

struct Copy {
  void* to;
  const void* from;
  int bytes;
  bool wanted;
};

enum class Wait { nothing, warp, block, finished };

struct Thread {
  ucontext_t start;
  jmp_buf context;
  bool started = false;
  std::unique_ptr<char[]> stack;
  Wait wait = Wait::nothing;
  bool vote = false;
  int kind = 0;
  void* arguments = nullptr;
  std::vector<std::vector<Copy>> groups{1};  // the last one is open
};

constexpr size_t kStack = 128 * 1024;
constexpr int kLanes = 32;

std::vector<Thread> block;
ucontext_t scheduler_start;
jmp_buf scheduler;
bool vote = false;  // of the block at its last barrier
int current = 0;
int current_block = 0;
int current_segment = 0;
unsigned char* shared = nullptr;
int64_t shared_size = 0;
void (*body)(const void*) = nullptr;
const void* body_parameter = nullptr;
std::mt19937 random_order;
int schedule = 0;  // 0: each warp as far as it gets, the first one first; 1: the last one first; else random

void yield(Wait why) {
  block[current].wait = why;
  if (_setjmp(block[current].context) == 0) _longjmp(scheduler, 1);
}

// Only the first switch to a fiber goes through the system, which saves signal masks.
void resume(Thread& thread) {
  if (_setjmp(scheduler) != 0) return;
  if (thread.started) _longjmp(thread.context, 1);
  thread.started = true;
  swapcontext(&scheduler_start, &thread.start);
}

void run_thread() {
  body(body_parameter);
  yield(Wait::finished);
}

// Resumes every lane of the warp that can run; false if none could.
bool advance(int warp) {
  bool moved = false;
  for (int l = 0; l < kLanes; ++l) {
    const int thread = warp * kLanes + (schedule % 2 == 0 ? l : kLanes - 1 - l);
    if (block[thread].wait != Wait::nothing) continue;
    current = thread;
    resume(block[thread]);
    moved = true;
  }
  return moved;
}

bool all_wait_for(Wait why) {
  return std::all_of(block.begin(), block.end(), [&](const Thread& t) { return t.wait == why; });
}

void run_block(int threads) {
  const int warps = threads / kLanes;
  block = std::vector<Thread>(threads);
  for (Thread& t : block) {
    t.stack.reset(new char[kStack]);
    getcontext(&t.start);
    t.start.uc_stack.ss_sp = t.stack.get();
    t.start.uc_stack.ss_size = kStack;
    makecontext(&t.start, run_thread, 0);
  }
  while (!all_wait_for(Wait::finished)) {
    bool moved = false;
    std::vector<int> order(warps);
    for (int w = 0; w < warps; ++w) order[w] = schedule == 1 ? warps - 1 - w : w;
    if (schedule > 1) std::shuffle(order.begin(), order.end(), random_order);
    for (const int warp : order) {
      int turns = schedule > 1 ? static_cast<int>(random_order() % 40) + 1 : 1 << 30;
      while (turns-- > 0 && advance(warp)) moved = true;
    }
    if (moved) continue;
    check(all_wait_for(Wait::block), "threads wait for others that never come");
    vote = std::any_of(block.begin(), block.end(), [](const Thread& t) { return t.vote; });
    for (Thread& t : block) {
      t.wait = Wait::nothing;
      t.vote = false;
    }
  }
}

}  // namespace

int thread() { return current; }
int block_index() { return current_block; }
int segment() { return current_segment; }
unsigned char* memory() { return shared; }
void barrier() { yield(Wait::block); }
bool barrier_or(bool x) {
  block[current].vote = x;
  yield(Wait::block);
  return vote;
}

void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "emulation: %s (thread %d)\n", what, current);
  std::fflush(stderr);
  std::abort();
}

void check_shared(const void* p, int bytes, const char* what) {
  const auto* const at = static_cast<const unsigned char*>(p);
  check(at >= shared && at + bytes <= shared + shared_size, what);
}

void together(int kind, void* arguments, void (*all)(void* const*)) {
  Thread* const warp = &block[current / kLanes * kLanes];
  Thread& mine = block[current];
  mine.kind = kind;
  mine.arguments = arguments;
  int there = 0;
  for (int l = 0; l < kLanes; ++l) there += warp[l].wait == Wait::warp;
  if (there < kLanes - 1) return yield(Wait::warp);
  void* lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    check(warp[l].kind == kind, "lanes of a warp do different things");
    lanes[l] = warp[l].arguments;
  }
  all(lanes);
  for (int l = 0; l < kLanes; ++l) warp[l].wait = Wait::nothing;
}

void cp_async(void* to, const void* from, int bytes, bool wanted) {
  check_shared(to, bytes, "a copy leaves shared memory");
  check(reinterpret_cast<uintptr_t>(to) % bytes == 0 && reinterpret_cast<uintptr_t>(from) % bytes == 0,
        "a copy is not aligned");
  std::memset(to, 0xff, bytes);
  block[current].groups.back().push_back({to, from, bytes, wanted});
}

void cp_async_commit() { block[current].groups.emplace_back(); }

void cp_async_wait(int pending) {
  auto& groups = block[current].groups;
  while (static_cast<int>(groups.size()) > pending + 1) {
    for (const Copy& c : groups.front()) {
      if (c.wanted) {
        std::memcpy(c.to, c.from, c.bytes);
      } else {
        std::memset(c.to, 0, c.bytes);
      }
    }
    groups.erase(groups.begin());
  }
}

void launch(void (*kernel)(const void*), const void* parameter, int64_t blocks, int segments, int threads,
            int64_t shared_bytes) {
  body = kernel;
  body_parameter = parameter;
  for (int64_t at = 0; at < blocks * segments; ++at) {
    const int64_t turn = schedule % 2 == 0 ? at : blocks * segments - 1 - at;
    current_block = static_cast<int>(turn % blocks);
    current_segment = static_cast<int>(turn / blocks);
    const Guarded bytes(shared_bytes, true);
    shared = bytes.data;
    shared_size = shared_bytes;
    check(reinterpret_cast<uintptr_t>(shared) % 16 == 0, "shared memory is not aligned");
    run_block(threads);
  }
}

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

void set_order(int order) {
  schedule = order;
  random_order.seed(static_cast<unsigned>(order));
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

// Forward and backward. The arrays: q, k, v, state, out, final state, inverse, grad_out, grad_state and the
// gradients of q, k, v and the state. Returns null or an error.
extern "C" const char* emulate(const int64_t* shape, int dtype, int normalize, HostArray* arrays,
                               const int* device, int order, int at_end) {
  using namespace cla;
  using namespace cla::cuda;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 13, at_end != 0);
  const Device gpu{0, device[0], device[1], device[2]};
  Problem p = problem_of(shape, dtype, normalize);
  p.q = moved.array(0);
  p.k = moved.array(1);
  p.v = moved.array(2);
  p.state = moved[3];
  const emulation::Guarded kept(4 * p.batch * p.heads * kept_states(p) * p.depth * (p.width + p.normalize), true);
  const Outputs outputs{moved.array(4), moved[5], moved[6], kept.data};
  const emulation::Guarded scratch(4 * forward_scratch(p, outputs, gpu), true);
  const char* error = forward(p, outputs, gpu, reinterpret_cast<float*>(scratch.data), nullptr);
  if (error == nullptr) {
    const Gradients g{moved.array(7),  moved[8],        moved[6], moved.array(9),
                      moved.array(10), moved.array(11), moved[12], kept.data};
    const emulation::Guarded more(4 * backward_scratch(p, g, gpu), true);
    error = backward(p, g, gpu, reinterpret_cast<float*>(more.data), nullptr);
  }
  moved.back();
  return error;
}

// One decoding position. The arrays: q, k, v, state, out and the new state, contiguous.
extern "C" const char* emulate_step(const int64_t* shape, int dtype, int normalize, HostArray* arrays, int order,
                                    int at_end) {
  using namespace cla;
  emulation::set_order(order);
  emulation::Arrays moved(arrays, 6, at_end != 0);
  Problem p = problem_of(shape, dtype, normalize);
  p.q = moved.array(0);
  p.k = moved.array(1);
  p.v = moved.array(2);
  p.state = moved[3];
  const char* const error = cuda::step(p, moved[4], moved[5], cuda::Device{}, nullptr);
  moved.back();
  return error;
}

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
