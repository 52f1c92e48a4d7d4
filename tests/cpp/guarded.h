// Memory that nobody leaves unnoticed.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>

namespace emulation {

// Bytes between two pages that nobody may touch: they begin behind the first or end before the second.
class Guarded {
 public:
  Guarded(int64_t size, bool at_end) : bytes(size), page_(sysconf(_SC_PAGESIZE)) {
    pages_ = (bytes + page_ - 1) / page_ * page_;
    start_ = static_cast<unsigned char*>(
        mmap(nullptr, pages_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start_ == MAP_FAILED || mprotect(start_ + page_, pages_, PROT_READ | PROT_WRITE) != 0) std::abort();
    data = start_ + page_ + (at_end ? pages_ - bytes : 0);
    std::memset(start_ + page_, 0xff, pages_);
    live().insert(this);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() {
    live().erase(this);
    munmap(start_, pages_ + 2 * page_);
  }
  static std::set<const Guarded*>& live() {
    static std::set<const Guarded*> all;
    return all;
  }
  unsigned char* data;
  const int64_t bytes;

 private:
  int64_t page_, pages_;
  unsigned char* start_;
};

}  // namespace emulation
