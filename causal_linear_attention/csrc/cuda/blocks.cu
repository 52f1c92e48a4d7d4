// Attention inside blocks of positions: a block of threads for each block of a head.
#include "fused.h"

#include "fused.cuh"

namespace cla::cuda {
namespace {

constexpr int kRows = 4;  // that a warp takes at once, so that each number of the others' rows is loaded once for all

// What one block of threads computes.
struct Place {
  int64_t b, head, start;  // the sequence, its head and the first position of the block
  int count, size, dim;    // positions of it, positions of most blocks, and columns
  int pitch;               // numbers from row to row in shared memory: odd, so that lanes in a column do not collide
};

CLA_DEVICE Place place_of(const Blocks& s) {
  const Joined& x = s.inputs;
  const int64_t size = s.size < x.length ? s.size : x.length, block = block_index();
  Place p;
  p.head = block % x.heads;
  p.b = block / x.heads % x.batch;
  p.start = block / x.heads / x.batch * size;
  p.size = static_cast<int>(size);
  p.count = static_cast<int>(x.length - p.start < size ? x.length - p.start : size);
  p.dim = static_cast<int>(x.dim);
  p.pitch = p.dim | 1;
  return p;
}

// The row of a position in an array (length, batch, `parts`, heads, dim).
CLA_DEVICE int64_t row_of(const Joined& x, const Place& p, int position, int parts, int which) {
  return ((((p.start + position) * x.batch + p.b) * parts + which) * x.heads + p.head) * x.dim;
}

// The block's queries (0) or keys (1), turned, or its values (2).
template <class In>
CLA_DEVICE void read_row(const Blocks& s, const Place& p, int which, int position, float* to) {
  const In* const from = static_cast<const In*>(s.inputs.qkv) + row_of(s.inputs, p, position, 3, which);
  if (which == 2) {
    for_columns(p.dim, [&](int64_t c) { to[c] = number(from[c]); });
  } else {
    turn_row(s.rotation, Map::none, from, position, p.dim, to);
  }
}
template <class In>
CLA_DEVICE void read_output_row(const Blocks& s, const Place& p, const void* data, int position, float* to) {
  const In* const from = static_cast<const In*>(data) + row_of(s.inputs, p, position, 1, 0);
  for_columns(p.dim, [&](int64_t c) { to[c] = number(from[c]); });
}

// Keys that a position may see are those before this one.
CLA_DEVICE int seen_by(const Blocks& s, const Place& p, int position) {
  return position >= p.count ? 0 : s.causal ? position + 1 : p.count;
}

CLA_DEVICE float largest_of_lanes(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = maximum(x, shuffle_xor(x, mask));
  return x;
}

// products[r][j] = rows[r] . others[j] for the kRows rows from `first` on and all keys j that one of them sees.
CLA_DEVICE void multiply_rows(const Blocks& s, const Place& p, int first, const float* rows, const float* others,
                              float* products, int stride) {
  const int last = first + kRows < p.count ? first + kRows : p.count;
  const int most = seen_by(s, p, last - 1);
#pragma unroll 1
  for (int j = lane_index(); j < most; j += 32) {
    float total[kRows] = {};
    const float* const other = others + j * p.pitch;
    for (int c = 0; c < p.dim; ++c) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) total[r] += rows[r * p.dim + c] * other[c];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r < last) products[r * stride + j] = total[r];
    }
  }
}

// Scores of a position become its weights before dropout, 0 at padding; each lane has the columns of for_columns.
CLA_DEVICE void weigh(const Blocks& s, const Place& p, int position, float* row) {
  const int seen = seen_by(s, p, position);
  const bool* const padding = s.padding != nullptr ? s.padding + p.b * s.inputs.length + p.start : nullptr;
  const auto hidden = [&](int64_t j) { return padding != nullptr && padding[j]; };
  if (!s.softmax) {
    for_columns(seen, [&](int64_t j) { row[j] = hidden(j) || row[j] < 0.0f ? 0.0f : row[j]; });
    return;
  }
  float top = from_bits(0xff800000u), share = 0.0f;  // minus infinity
  for_columns(seen, [&](int64_t j) { top = hidden(j) ? top : maximum(top, row[j]); });
  sync_warp();
  top = largest_of_lanes(top);
  for_columns(seen, [&](int64_t j) {
    row[j] = hidden(j) ? 0.0f : exponential(row[j] - top);
    share += row[j];
  });
  sync_warp();
  const float total = sum_of_lanes(share), inverse = total == 0.0f ? 0.0f : 1.0f / total;
  for_columns(seen, [&](int64_t j) { row[j] *= inverse; });
}

// A number that multiplies the weight of a position for key j.
CLA_DEVICE float factor_at(const Blocks& s, const Place& p, uint64_t seed, int position, int64_t j) {
  if (s.dropout.seed == nullptr) return 1.0f;
  return factor_of(s.dropout, seed, (p.b * s.inputs.heads + p.head) * s.inputs.length + p.start + position, j);
}
CLA_DEVICE uint64_t seed_of(const Dropout& d) { return d.seed != nullptr ? static_cast<uint64_t>(*d.seed) : 0; }

// visit(r, c, the sum over j of weights[r][j] others[j][c]) for the kRows rows from `first` on, of keys that each sees.
template <class Visit>
CLA_DEVICE void add_rows(const Blocks& s, const Place& p, int first, const float* weights, int stride,
                         const float* others, const Visit& visit) {
  const int last = first + kRows < p.count ? first + kRows : p.count, most = seen_by(s, p, last - 1);
#pragma unroll 1
  for (int c = lane_index(); c < p.dim; c += 32) {
    float total[kRows] = {};
    for (int j = 0; j < most; ++j) {
      const float other = others[j * p.pitch + c];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (j < seen_by(s, p, first + r)) total[r] += weights[r * stride + j] * other;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r < last) visit(r, c, total[r]);
    }
  }
}

// The same down the columns of `weights`, for the kRows keys from `first` on: the sum over the positions i that see a
// key of weights[i][key] others[i][c].
template <class Visit>
CLA_DEVICE void add_columns(const Blocks& s, const Place& p, int first, const float* weights, const float* others,
                            const Visit& visit) {
#pragma unroll 1
  for (int c = lane_index(); c < p.dim; c += 32) {
    float total[kRows] = {};
    for (int i = s.causal ? first : 0; i < p.count; ++i) {
      const float other = others[i * p.pitch + c];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r < seen_by(s, p, i)) total[r] += weights[i * p.size + first + r] * other;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r < p.count) visit(r, c, total[r]);
    }
  }
}

template <class In>
CLA_KERNEL(kThreads, 2)
blocks_kernel(CLA_PARAMETER Blocks s) {
  const Place p = place_of(s);
  float* const keys = reinterpret_cast<float*>(shared_memory());  // (size) rows, and so are values
  float* const values = keys + p.size * p.pitch;
  float* const queries = values + p.size * p.pitch + warp_index() * kRows * (p.dim + p.size);  // (kRows, dim)
  float* const weights = queries + kRows * p.dim;                                              // (kRows, size)
  const uint64_t seed = seed_of(s.dropout);
  for (int i = warp_index(); i < p.count; i += kWarps) {
    read_row<In>(s, p, 1, i, keys + i * p.pitch);
    read_row<In>(s, p, 2, i, values + i * p.pitch);
  }
  sync_threads();
  for (int first = kRows * warp_index(); first < p.count; first += kRows * kWarps) {
    for (int r = 0; r < kRows && first + r < p.count; ++r) read_row<In>(s, p, 0, first + r, queries + r * p.dim);
    sync_warp();
    multiply_rows(s, p, first, queries, keys, weights, p.size);
    for (int r = 0; r < kRows && first + r < p.count; ++r) {
      float* const row = weights + r * p.size;
      weigh(s, p, first + r, row);
      for_columns(seen_by(s, p, first + r), [&](int64_t j) { row[j] *= factor_at(s, p, seed, first + r, j); });
    }
    sync_warp();
    add_rows(s, p, first, weights, p.size, values, [&](int r, int c, float total) {
      store(total, static_cast<In*>(s.out) + row_of(s.inputs, p, first + r, 1, 0) + c);
    });
    sync_warp();
  }
}

// Weights become what the values were multiplied by, slopes (of the output along the values) those of the scores.
CLA_DEVICE void slope_back(const Blocks& s, const Place& p, uint64_t seed, int position, float* weights,
                           float* slopes) {
  const int seen = seen_by(s, p, position);
  weigh(s, p, position, weights);
  float share = 0.0f;
  for_columns(seen, [&](int64_t j) {
    const float factor = factor_at(s, p, seed, position, j), weight = weights[j];
    const float along = slopes[j] * factor;
    share += s.softmax ? along * weight : 0.0f;
    slopes[j] = s.softmax || weight > 0.0f ? along : 0.0f;
  });
  sync_warp();
  const float mean = sum_of_lanes(share);
  for_columns(seen, [&](int64_t j) {
    if (s.softmax) slopes[j] = weights[j] * (slopes[j] - mean);
    weights[j] *= factor_at(s, p, seed, position, j);
  });
}

template <class In>
CLA_KERNEL(kThreads, 2)
blocks_gradient_kernel(CLA_PARAMETER BlocksGradient g) {
  const Blocks& s = g.blocks;
  const Place p = place_of(s);
  const int warp = warp_index(), pairs = p.dim / 2;
  float* const first_rows = reinterpret_cast<float*>(shared_memory());  // (size) keys, then queries
  float* const second_rows = first_rows + p.size * p.pitch;             // (size) values, then gradients of outputs
  float* const weights = second_rows + p.size * p.pitch;                // (size, size), and so are slopes
  float* const slopes = weights + p.size * p.size;
  float* const mine = slopes + p.size * p.size + warp * 2 * kRows * p.dim;  // (2 kRows, dim) of this warp
  float* const others = mine + kRows * p.dim;
  float* const angles = slopes + p.size * p.size + kWarps * 2 * kRows * p.dim;  // (kWarps, pairs)
  float* const theta = g.grad_theta != nullptr ? angles + warp * pairs : nullptr;
  const uint64_t seed = seed_of(s.dropout);
  const auto write_turned_back = [&](int which, int position, const float* grad) {
    const int64_t at = row_of(s.inputs, p, position, 3, which);
    turn_row_back(s.rotation, Map::none, static_cast<const In*>(s.inputs.qkv) + at, grad, position, p.dim,
                  static_cast<In*>(g.grad_qkv) + at, theta);
  };
  if (theta != nullptr) {
    for_columns(pairs, [&](int64_t pair) { theta[pair] = 0.0f; });
  }
  for (int i = warp; i < p.count; i += kWarps) {
    read_row<In>(s, p, 1, i, first_rows + i * p.pitch);
    read_row<In>(s, p, 2, i, second_rows + i * p.pitch);
  }
  sync_threads();
  for (int first = kRows * warp; first < p.count; first += kRows * kWarps) {
    float *const row = weights + first * p.size, *const slope = slopes + first * p.size;
    for (int r = 0; r < kRows && first + r < p.count; ++r) {
      read_row<In>(s, p, 0, first + r, mine + r * p.dim);
      read_output_row<In>(s, p, g.grad_out, first + r, others + r * p.dim);
    }
    sync_warp();
    multiply_rows(s, p, first, mine, first_rows, row, p.size);
    multiply_rows(s, p, first, others, second_rows, slope, p.size);
    for (int r = 0; r < kRows && first + r < p.count; ++r) {
      slope_back(s, p, seed, first + r, row + r * p.size, slope + r * p.size);
    }
    sync_warp();
    add_rows(s, p, first, slope, p.size, first_rows,
             [&](int r, int c, float total) { mine[r * p.dim + c] = total; });
    sync_warp();
    for (int r = 0; r < kRows && first + r < p.count; ++r) write_turned_back(0, first + r, mine + r * p.dim);
    sync_warp();
  }
  sync_threads();
  for (int i = warp; i < p.count; i += kWarps) {
    read_row<In>(s, p, 0, i, first_rows + i * p.pitch);
    read_output_row<In>(s, p, g.grad_out, i, second_rows + i * p.pitch);
  }
  sync_threads();
  for (int first = kRows * warp; first < p.count; first += kRows * kWarps) {
    add_columns(s, p, first, weights, second_rows, [&](int r, int c, float total) {
      store(total, static_cast<In*>(g.grad_qkv) + row_of(s.inputs, p, first + r, 3, 2) + c);
    });
    add_columns(s, p, first, slopes, first_rows,
                [&](int r, int c, float total) { mine[r * p.dim + c] = total; });
    sync_warp();
    for (int r = 0; r < kRows && first + r < p.count; ++r) write_turned_back(1, first + r, mine + r * p.dim);
    sync_warp();
  }
  if (g.grad_theta == nullptr) return;
  sync_threads();
  for (int pair = thread_index(); pair < pairs; pair += kThreads) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += angles[w * pairs + pair];
    static_cast<float*>(g.grad_theta)[int64_t{block_index()} * pairs + pair] = total;
  }
}

constexpr const char* kBlocksTooLarge = "blocks of this size do not fit this GPU's shared memory";

// Numbers become whole multiples of the alignment of shared memory.
constexpr int64_t shared_bytes_of(int64_t numbers) { return (4 * numbers + 127) / 128 * 128; }

int64_t block_size(const Blocks& s) { return s.size < s.inputs.length ? s.size : s.inputs.length; }

}  // namespace

int64_t block_count(const Blocks& s) {
  const Joined& x = s.inputs;
  const int64_t size = block_size(s);
  return size == 0 ? 0 : (x.length + size - 1) / size * x.batch * x.heads;
}

int64_t blocks_bytes(int64_t size, int64_t dim) {
  return shared_bytes_of(2 * size * (dim | 1) + 2 * size * size + kWarps * (2 * kRows * dim + dim / 2));
}

const char* blocks(const Blocks& s, const Device& device, void* stream) {
  const int64_t count = block_count(s), dim = s.inputs.dim, size = block_size(s);
  if (count == 0 || dim == 0) return nullptr;
  const int64_t bytes = shared_bytes_of(2 * size * (dim | 1) + kWarps * kRows * (dim + size));
  if (bytes > device.shared_bytes) return kBlocksTooLarge;
  return with_type(s.inputs.dtype, [&](auto x) {
    return launch_kernel<blocks_kernel<decltype(x)>>(s, device, count, 1, kThreads, bytes, stream);
  });
}

const char* blocks_gradient(const BlocksGradient& g, const Device& device, void* stream) {
  const Blocks& s = g.blocks;
  const int64_t count = block_count(s), dim = s.inputs.dim, bytes = blocks_bytes(block_size(s), dim);
  if (count == 0 || dim == 0) return nullptr;
  if (bytes > device.shared_bytes) return kBlocksTooLarge;
  return with_type(s.inputs.dtype, [&](auto x) {
    return launch_kernel<blocks_gradient_kernel<decltype(x)>>(g, device, count, 1, kThreads, bytes, stream);
  });
}

}  // namespace cla::cuda
