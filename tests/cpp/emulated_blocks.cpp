// Runs the blocks of a launch: see emulated_device.h.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "device.cuh"
#include "guarded.h"

namespace emulation {
namespace {

using Launcher = const char* (*)(const char* kernel, const void* parameter, int64_t blocks, int segments, int threads,
                                 int64_t shared_bytes);

const char* const kEmulate = reinterpret_cast<const char*>(1);  // what it returns to leave a launch to the emulation

struct Copy {
  void* to;
  const void* from;
  int bytes;
  bool wanted;
};

enum class Wait { nothing, warp, block, other_block, finished };

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

struct Block {
  int index, segment;
  std::vector<Thread> threads;
  Guarded shared;
  int64_t shared_bytes;
  bool vote = false;  // at its last barrier
  Block(int block, int part, int count, int64_t bytes)
      : index(block), segment(part), threads(count), shared(bytes, true), shared_bytes(bytes) {}
};

constexpr size_t kStack = 128 * 1024;
constexpr int kLanes = 32;

Block* block = nullptr;
int current = 0;  // thread of it
ucontext_t scheduler_start;
jmp_buf scheduler;
void (*body)(const void*) = nullptr;
const void* body_parameter = nullptr;
std::mt19937 random_order;
int schedule = 0;
bool tickets_from_the_last = false;
int last_ticket = 0;
Launcher launcher = nullptr;
int64_t events = 0;      // anything but waiting for another block
bool interrupted = false;  // the block has told others something

Thread& mine() { return block->threads[current]; }

void yield(Wait why) {
  if (why != Wait::other_block) ++events;
  mine().wait = why;
  if (_setjmp(mine().context) == 0) _longjmp(scheduler, 1);
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

std::unique_ptr<Block> new_block(int64_t turn, int64_t blocks, int threads, int64_t shared_bytes) {
  auto result = std::make_unique<Block>(static_cast<int>(turn % blocks), static_cast<int>(turn / blocks), threads,
                                        shared_bytes);
  check(reinterpret_cast<uintptr_t>(result->shared.data) % 16 == 0, "shared memory is not aligned");
  for (Thread& t : result->threads) {
    t.stack.reset(new char[kStack]);
    getcontext(&t.start);
    t.start.uc_stack.ss_sp = t.stack.get();
    t.start.uc_stack.ss_size = kStack;
    makecontext(&t.start, run_thread, 0);
  }
  return result;
}

// Resumes every lane of the warp that can run; false if none could.
bool advance(int warp) {
  bool moved = false;
  for (int l = 0; l < kLanes; ++l) {
    current = warp * kLanes + (schedule % 2 == 0 ? l : kLanes - 1 - l);
    if (interrupted || mine().wait != Wait::nothing) continue;
    resume(mine());
    moved = true;
  }
  return moved;
}

bool all_wait_for(Wait why) {
  return std::all_of(block->threads.begin(), block->threads.end(), [&](const Thread& t) { return t.wait == why; });
}

// Lets the block run until all its threads wait, or for a while; true when it has finished.
bool step(Block& which) {
  block = &which;
  interrupted = false;
  for (Thread& t : which.threads) {
    if (t.wait == Wait::other_block) t.wait = Wait::nothing;
  }
  const int warps = static_cast<int>(which.threads.size()) / kLanes;
  std::vector<int> order(warps);
  for (int w = 0; w < warps; ++w) order[w] = schedule == 1 ? warps - 1 - w : w;
  if (schedule > 1) std::shuffle(order.begin(), order.end(), random_order);
  bool moved = false;
  for (const int warp : order) {
    int turns = schedule > 1 ? static_cast<int>(random_order() % 40) + 1 : 1 << 30;
    while (turns-- > 0 && advance(warp)) moved = true;
  }
  if (moved) return false;
  if (all_wait_for(Wait::finished)) return true;
  check(all_wait_for(Wait::block), "threads wait for others that never come");
  ++events;
  which.vote = std::any_of(which.threads.begin(), which.threads.end(), [](const Thread& t) { return t.vote; });
  for (Thread& t : which.threads) {
    t.wait = Wait::nothing;
    t.vote = false;
  }
  return false;
}

}  // namespace

int thread() { return current; }
int block_index() { return block->index; }
int segment() { return block->segment; }
unsigned char* memory() { return block->shared.data; }
void barrier() { yield(Wait::block); }
bool barrier_or(bool x) {
  mine().vote = x;
  yield(Wait::block);
  return block->vote;
}

int take_ticket(int* counter) {
  const int ticket = (*counter)++;
  return tickets_from_the_last ? last_ticket - ticket : ticket;
}

// Others run before the thread does anything else.
void store_release(int* to, int x) {
  *to = x;
  ++events;
  interrupted = true;
  yield(Wait::other_block);
}

int wait_and_load_acquire(const int* from) {
  while (*from == 0) yield(Wait::other_block);
  ++events;
  return *from;
}

void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "emulation: %s (thread %d)\n", what, current);
  std::fflush(stderr);
  std::abort();
}

void check_shared(const void* p, int bytes, const char* what) {
  const auto* const at = static_cast<const unsigned char*>(p);
  check(at >= block->shared.data && at + bytes <= block->shared.data + block->shared_bytes, what);
}

void together(int kind, void* arguments, void (*all)(void* const*)) {
  Thread* const warp = &block->threads[current / kLanes * kLanes];
  mine().kind = kind;
  mine().arguments = arguments;
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
  mine().groups.back().push_back({to, from, bytes, wanted});
}

void cp_async_commit() { mine().groups.emplace_back(); }

void cp_async_wait(int pending) {
  auto& groups = mine().groups;
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

const char* launch(void (*kernel)(const void*), const char* name, const void* parameter, int64_t blocks, int segments,
                   int threads, int64_t shared_bytes) {
  if (launcher != nullptr) {
    const char* const result = launcher(name, parameter, blocks, segments, threads, shared_bytes);
    if (result != kEmulate) return result;
  }
  body = kernel;
  body_parameter = parameter;
  const int64_t count = blocks * segments;
  last_ticket = static_cast<int>(count) - 1;
  const size_t at_once = schedule > 1 ? schedule : 1;
  std::deque<std::unique_ptr<Block>> running;
  int64_t started = 0, quiet = 0;  // steps in which nothing happened
  while (started < count || !running.empty()) {
    while (running.size() < at_once && started < count) {
      const int64_t turn = schedule % 2 == 0 ? started : count - 1 - started;
      running.push_back(new_block(turn, blocks, threads, shared_bytes));
      ++started;
    }
    // At random, but one after the other where nobody gets ahead.
    if (schedule > 1 && quiet == 0) std::swap(running.front(), running[random_order() % running.size()]);
    const int64_t before = events;
    const bool finished = step(*running.front());
    quiet = events == before && !finished ? quiet + 1 : 0;
    if (quiet > 2 * static_cast<int64_t>(running.size())) return "the blocks wait for each other";
    if (!finished) running.push_back(std::move(running.front()));
    running.pop_front();
  }
  return nullptr;
}

void set_order(int order) {
  tickets_from_the_last = order < 0;
  schedule = std::abs(order);
  random_order.seed(static_cast<unsigned>(schedule));
}

// Who gets the launches from now on; null for the emulation.
extern "C" void set_launcher(Launcher to) { launcher = to; }

// Addresses and sizes of at most `most` arrays that kernels may touch; returns how many there are.
extern "C" int guarded_ranges(int64_t* ranges, int most) {
  int count = 0;
  for (const Guarded* x : Guarded::live()) {
    if (count < most) {
      ranges[2 * count] = reinterpret_cast<int64_t>(x->data);
      ranges[2 * count + 1] = x->bytes;
    }
    ++count;
  }
  return count;
}

}  // namespace emulation
