// The steps of fused.h on the CPU. Free of torch; pointers are borrowed.
#pragma once

#include <cstdint>

#include "../fused.h"

namespace cla {

struct Threads;

// What LRPE needs at each position, in the accumulation type. Rows of the table are cosines for `room` channels, then
// sines with the signs of the channels that they go to. `direction` is null where nothing turns.
template <class T>
struct Turns {
  const T *direction = nullptr, *table = nullptr;
  T scale = 1;
  int64_t dim = 0, room = 0;
};

// Of one instruction set: rows or positions [first, last), or one block of a head. `theta` gains theta's gradient and
// may be null.
template <class T>
struct FusedKernels {
  void (*residual)(const Residual&, int64_t first, int64_t last, T* scratch);
  void (*residual_gradient)(const ResidualGradient&, int64_t first, int64_t last, T* scratch);
  void (*gated)(const Gated&, int64_t first, int64_t last, T* scratch);
  void (*gated_gradient)(const GatedGradient&, int64_t first, int64_t last, T* scratch);
  void (*features)(const Features&, const Turns<T>&, int64_t first, int64_t last, T* scratch);
  void (*features_gradient)(const FeaturesGradient&, const Turns<T>&, int64_t first, int64_t last, T* scratch,
                            double* theta);
  void (*blocks)(const Blocks&, const Turns<T>&, int64_t block, int64_t b, int64_t head, T* scratch);
  void (*blocks_gradient)(const BlocksGradient&, const Turns<T>&, int64_t block, int64_t b, int64_t head, T* scratch,
                          double* theta);
};

void residual(const Residual&, const Threads&);
void residual_gradient(const ResidualGradient&, const Threads&);
void gated(const Gated&, const Threads&);
void gated_gradient(const GatedGradient&, const Threads&);
void features(const Features&, const Threads&);
void features_gradient(const FeaturesGradient&, const Threads&);
void blocks(const Blocks&, const Threads&);
void blocks_gradient(const BlocksGradient&, const Threads&);

}  // namespace cla
