// Memory that frees itself, and tasks handed out to threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "forward_backward.h"

namespace cla {

template <class T>
struct Free {
  void operator()(T* p) const { std::free(p); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Free<T>>;

template <class T>
Buffer<T> allocate(int64_t count) {
  void* const p = std::aligned_alloc(64, static_cast<size_t>(round_up(count * sizeof(T), 64)) + 64);
  if (p == nullptr) throw std::bad_alloc();
  return Buffer<T>(static_cast<T*>(p));
}

// Less than some ten microseconds of work is not worth waking a thread for.
constexpr int64_t kOperationsOfAThread = 2'000'000;

inline int useful_threads(const Threads& threads, int64_t operations) {
  const int64_t useful = 1 + operations / kOperationsOfAThread;
  return static_cast<int>(threads.count < useful ? threads.count : useful);
}

// Hands tasks [0, count) out to the threads, one at a time.
template <class Body>
void for_tasks(int64_t count, const Threads& threads, const Body& body) {
  struct Context {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    int64_t count;
    const Body* body;
  } context;
  context.count = count;
  context.body = &body;
  auto work = [](int64_t, int64_t, void* opaque) {
    Context& c = *static_cast<Context*>(opaque);
    try {
      (*c.body)([&c]() -> int64_t {
        const int64_t task = c.next.fetch_add(1);
        return task < c.count && !c.failed ? task : -1;
      });
    } catch (const std::bad_alloc&) {
      c.failed = true;
    }
  };
  const int64_t workers = threads.count < count ? threads.count : count;
  if (workers <= 1 || threads.run == nullptr) {
    work(0, 1, &context);
  } else {
    threads.run(workers, work, &context);
  }
  if (context.failed) throw std::bad_alloc();
}

}  // namespace cla
