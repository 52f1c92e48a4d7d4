// Body of the files instruction_set_*.cpp: one copy of the kernels in a namespace of its own.
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cla {
namespace CLA_ISA {
namespace {
#include "vector.inl"
#include "tiles.inl"
#include "decays.inl"
#include "chunk_scan.inl"
#include "step.inl"
#include "product.inl"
#include "fused.inl"

#define CLA_TEXT(x) #x
#define CLA_NAME(x) CLA_TEXT(x)
}  // namespace

extern const Kernels kernels;
const Kernels kernels = {CLA_NAME(CLA_ISA), segment<float, false>, segment<double, false>, segment<float, true>,
                         segment<double, true>, step_f32, step_f64, product, &kFused<float>, &kFused<double>};
}  // namespace CLA_ISA
}  // namespace cla
