// The CPU kernels for AVX-512 (F, VL, BW, DQ).
#define CLA_ISA avx512
#define CLA_VECTOR_BYTES 64
#include "instruction_set.inl"
