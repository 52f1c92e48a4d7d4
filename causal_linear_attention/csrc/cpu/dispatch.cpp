// Which instruction set runs.
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "forward_backward.h"

namespace cla {

namespace baseline {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> all{&baseline::kernels};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // What build_kernels.py compiles these two for.
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (has_avx2) all.push_back(&avx2::kernels);
  if (has_avx512) all.push_back(&avx512::kernels);
#endif
  return all;
}

namespace {

std::atomic<const Kernels*> chosen{nullptr};

const Kernels* find_kernels(const std::string& name) {
  const auto all = available_kernels();
  std::string names;
  for (const Kernels* kernels : all) {
    if (name == kernels->name) return kernels;
    names.append(names.empty() ? "" : ", ").append(kernels->name);
  }
  throw std::runtime_error("instruction set '" + name + "' is not available here; expected one of " + names);
}

}  // namespace

void choose_kernels(const std::string& name) {
  const char* const forced = std::getenv("CAUSAL_LINEAR_ATTENTION_ISA");
  if (!name.empty()) {
    chosen = find_kernels(name);
  } else if (forced != nullptr && *forced != '\0') {
    chosen = find_kernels(forced);
  } else {
    chosen = available_kernels().back();
  }
}

const Kernels& current_kernels() {
  if (chosen.load() == nullptr) choose_kernels("");
  return *chosen.load();
}

}  // namespace cla
