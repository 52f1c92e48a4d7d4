// The CPU kernels for AVX2 with fused multiply-add.
#define CLA_ISA avx2
#define CLA_VECTOR_BYTES 32
#include "instruction_set.inl"
