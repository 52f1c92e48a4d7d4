// The CPU kernels for what every processor of the architecture has.
#define CLA_ISA baseline
#define CLA_VECTOR_BYTES 16
#include "instruction_set.inl"
