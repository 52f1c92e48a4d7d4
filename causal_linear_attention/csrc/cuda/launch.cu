// How a sweep is cut up for a device, and its launches.
#include "sweep.h"

namespace cla_cuda {
namespace {

constexpr int64_t kFewestRows = 512;  // of a segment: fewer cost more than they save
constexpr int64_t kMostSegments = 64;
constexpr int kMostStages = 4;

int64_t shared_bytes(const Sweep& s, int capability) {
  if (s.dtype == Dtype::f32) return Launcher<float>::shared_bytes(s, capability);
  if (s.dtype == Dtype::bf16) return Launcher<Bf16>::shared_bytes(s, capability);
  return Launcher<Half>::shared_bytes(s, capability);
}

// As many stages as leave room for a second block on the multiprocessor, else as fit; one where copies
// are not asynchronous. False if not even one fits.
bool choose_stages(Sweep& s, const Device& device) {
  const int64_t all = device.shared_bytes, half = (all - 1024) / 2;
  const auto fits = [&](int64_t limit) { return shared_bytes(s, device.capability) <= limit; };
  for (s.stages = kMostStages; s.stages >= 2 && device.capability >= 80; --s.stages) {
    if (fits(half)) return true;
  }
  for (s.stages = device.capability >= 80 ? kMostStages : 1; s.stages >= 1; --s.stages) {
    if (fits(all)) return true;
  }
  return false;
}

const char* launch_once(const Sweep& s, int capability, void* stream) {
  if (s.dtype == Dtype::f32) return Launcher<float>::launch(s, capability, stream);
  if (s.dtype == Dtype::bf16) return Launcher<Bf16>::launch(s, capability, stream);
  return Launcher<Half>::launch(s, capability, stream);
}

int64_t part_sums(const Sweep& s, const Part& part) {
  return s.segments > 1 ? s.heads * s.segments * part.width * (part.depth + 1) : 0;
}

}  // namespace

bool plan(Sweep& s, const Device& device) {
  if (!choose_stages(s, device)) return false;
  const int64_t wanted = s.heads > 0 ? 2 * device.multiprocessors / s.heads : 1;
  int64_t segments = wanted < s.length / kFewestRows ? wanted : s.length / kFewestRows;
  segments = segments < kMostSegments ? segments : kMostSegments;
  segments = segments < 2 ? 1 : segments;
  const int64_t rows = (s.length + segments - 1) / segments;
  s.segment_rows = (rows + 63) / 64 * 64;
  s.segments = s.length > 0 ? static_cast<int>((s.length + s.segment_rows - 1) / s.segment_rows) : 1;
  return true;
}

int64_t sums_size(const Sweep& s) {
  int64_t total = 0;
  for (int p = 0; p < s.part_count; ++p) total += part_sums(s, s.parts[p]);
  return total;
}

const char* launch(Sweep s, const Device& device, float* sums, void* stream) {
  if (s.heads == 0) return nullptr;
  if (s.segments > 1) {
    for (int p = 0; p < s.part_count; ++p) {
      s.parts[p].sums = sums;
      sums += part_sums(s, s.parts[p]);
    }
    s.only_sums = true;
    if (const char* const error = launch_once(s, device.capability, stream)) return error;
    s.only_sums = false;
  }
  return launch_once(s, device.capability, stream);
}

}  // namespace cla_cuda
