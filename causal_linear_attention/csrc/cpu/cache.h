// How much the processor keeps near.
#pragma once

#include <cstdint>

namespace cla {

// Bytes of the last-level cache; a usual size where the system does not say.
int64_t last_level_cache();

}  // namespace cla
