// The steps of ../fused.h on a GPU: each is one launch on the stream, which never waits; null or why it failed.
// Pointers lie on the current device, and no type is float64, but theta's may be.
#pragma once

#include "../fused.h"
#include "attention.h"

namespace cla::cuda {

const char* residual(const Residual&, const Device&, void* stream);
const char* residual_gradient(const ResidualGradient&, const Device&, void* stream);
const char* gated(const Gated&, const Device&, void* stream);
const char* gated_gradient(const GatedGradient&, const Device&, void* stream);
const char* features(const Features&, const Device&, void* stream);

// grad_theta: (parts, dim / 2) float32, the rows of which add up to the gradient.
const char* features_gradient(const FeaturesGradient&, const Device&, void* stream);
int64_t theta_parts(const Joined&);

// grad_theta: (block_count, dim / 2) float32, the rows of which add up to the gradient.
const char* blocks(const Blocks&, const Device&, void* stream);
const char* blocks_gradient(const BlocksGradient&, const Device&, void* stream);
int64_t block_count(const Blocks&);
// Shared memory that the larger of the two asks for. fused.py follows the same rule.
int64_t blocks_bytes(int64_t size, int64_t dim);

}  // namespace cla::cuda
