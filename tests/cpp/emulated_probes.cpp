// One warp's matrix instructions of emulated_device.h, called with the registers of its lanes.
#include "device.cuh"

namespace {

using namespace cla::cuda;

struct Product {
  const uint32_t *a, *b;  // (32, 4) and (32, 2)
  float* d;               // (32, 4), zeros before
};
template <class T>
void multiply_lanes(const void* x) {
  const Product& p = *static_cast<const Product*>(x);
  const int lane = thread_index();
  const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  uint32_t a[4];
  for (int r = 0; r < 4; ++r) a[r] = p.a[lane * 4 + r];
  float d[4];
  mma_m16n8k16(d, a, p.b[lane * 2], p.b[lane * 2 + 1], zeros, T{});
  for (int r = 0; r < 4; ++r) p.d[lane * 4 + r] = d[r];
}

struct Load {
  const uint16_t* rows;  // (32, 8), by the lane that gives a row's address
  uint32_t* x;           // (32, 4)
};
template <bool kTranspose>
void load_lanes(const void* from) {
  const Load& load = *static_cast<const Load*>(from);
  const int lane = thread_index();
  uint16_t* const shared = reinterpret_cast<uint16_t*>(shared_memory());
  for (int c = 0; c < 8; ++c) shared[lane * 8 + c] = load.rows[lane * 8 + c];
  uint32_t x[4];
  ldmatrix_x4<kTranspose>(x, shared + lane * 8);
  for (int r = 0; r < 4; ++r) load.x[lane * 4 + r] = x[r];
}

const char* launch_warp(void (*body)(const void*), const void* parameter) {
  return emulation::launch(body, "", parameter, 1, 1, 32, 512);
}

}  // namespace

extern "C" const char* probe_product(int bf16, const uint32_t* a, const uint32_t* b, float* d) {
  const Product p{a, b, d};
  return launch_warp(bf16 ? multiply_lanes<Bf16> : multiply_lanes<Half>, &p);
}

extern "C" const char* probe_load(int transpose, const uint16_t* rows, uint32_t* x) {
  const Load load{rows, x};
  return launch_warp(transpose ? load_lanes<true> : load_lanes<false>, &load);
}
