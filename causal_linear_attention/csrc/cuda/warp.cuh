// What one warp does: it keeps 16 columns of the state, transposed, in registers and works out the same
// 16 columns of the outputs:
//
//     out = P C + A S,   S^T += C^T B,   P = A B^T (one triangle of it)
//
// S^T is a sum in registers and, unchanged, the right factor of the product that follows. P, the scores, is
// shared: the warps compute it tile by tile and pass it on through shared memory, as left factors.
//
// dkdv has two outputs and one state: dk = P C + A R^T finds R^T in registers as above, and for dv = P C + K R the
// warps put R into shared memory, all at once or strip by strip.
#pragma once

#include <type_traits>

#include "decays.cuh"

namespace cla::cuda {

template <class S>
struct Warp {
  using In = typename S::In;
  using Part = typename S::Part;
  using Input = Fragment<S::kInputParts>;
  using Sum = Fragment<S::kSumParts>;
  using Weighted = Fragment<S::kWeightedParts>;
  using Output = Sums[S::kRowBlocks];
  static constexpr int kPitch = S::kPitch;
  static constexpr bool kFewRegisters =
      S::kColumnBlocks >= 8 || S::kBytes == 4 || S::kBackward || !S::kAligned || S::kDecayed;
  static constexpr bool kWeighted = S::kReverse && S::kNormalize, kBoosted = kNarrow<In> && kWeighted;
  static constexpr int kWeighed = S::kRowBlocks < 2 ? 1 : 2;  // blocks of rows at once, of which `dkdv` has no more

  unsigned char* const memory;
  const int index;  // of the warp, of its 16 columns
  const int first_column;  // of the block
  Sums state[S::kColumnBlocks];
  // Beside the state: this warp's columns 2 t, 2 t + 1 and 8 further on of z (forward, dq), or of the sum of
  // slopes[j] q[j] (dkdv, dk). Forward on wide heads has those of z 128 columns further on, too.
  float vector[4 * S::kVectors];
  float boost = 1.0f;  // what weights and slopes are multiplied by, for float16
  // With decays: the factor of all chunks so far, and of the last one for how many rows its tables are right and whether
  // one of them hides what is before it.
  float passed = 1.0f;
  int known = 0;
  bool resets = false;

  CLA_DEVICE explicit Warp(int first = 0)
      : memory(shared_memory()), index(S::kBackward ? here(warp_index()) : warp_index()), first_column(first) {
    clear();
  }
  CLA_DEVICE int column() const { return first_column + index * 16; }  // the first of the warp

  CLA_DEVICE void clear() {
#pragma unroll
    for (int d = 0; d < S::kColumnBlocks; ++d) zero(state[d]);
#pragma unroll
    for (int x = 0; x < 4 * S::kVectors; ++x) vector[x] = 0.0f;
  }

  CLA_DEVICE static const In* tile(const unsigned char* stage, int x, int row, int column) {
    return reinterpret_cast<const In*>(stage + S::in_stage(x) * S::kTile) + row * 16 * kPitch + column * 16;
  }
  CLA_DEVICE static const float* weights(const unsigned char* stage) {
    return reinterpret_cast<const float*>(stage + S::kWeights);
  }
  CLA_DEVICE static const float* slopes(const unsigned char* stage) {
    return reinterpret_cast<const float*>(stage + S::kSlopes);
  }
  CLA_DEVICE Bytes16* scores(int part, int which) const {
    constexpr int kPart = S::kScoreSets * S::kScoreTiles;
    return reinterpret_cast<Bytes16*>(memory + S::kScores) + (part * kPart + which) * 32 + lane_index();
  }
  // Of R, in dkdv: number x of those in shared memory.
  CLA_DEVICE In* strip(int x) const { return reinterpret_cast<In*>(memory + S::kWork) + x * 16 * kPitch; }
  CLA_DEVICE float* floats(int at) const { return reinterpret_cast<float*>(memory + at); }
  CLA_DEVICE float* row_sums(int which) const { return floats(S::kWork) + which * S::kChunk; }
  CLA_DEVICE Factors<S> factors() const { return {floats(S::kFactors)}; }
  CLA_DEVICE static const float* decays(const unsigned char* stage) {
    return reinterpret_cast<const float*>(stage + S::kDecays);
  }
  // Rows and columns of number x of a tile of sums.
  CLA_DEVICE static int row_of(int x) { return lane_row() + x % 4 / 2 * 8; }
  CLA_DEVICE static int column_of(int x) { return x / 4 * 8 + lane_column() + x % 2; }

  // --- decays ------------------------------------------------------------------------------------------

  // Before all else that is done with a chunk of `count` rows or more. One number for all rows has one table.
  CLA_DEVICE void find_factors(const unsigned char* stage, int count, bool one) {
    if constexpr (!S::kDecayed) return;
    count = count < S::kChunk ? count : S::kChunk;
    if (one && count == known) return;
    resets = sync_threads_or(factors().fill(decays(stage), count));
    known = count;
  }

  // What of the chunk's rows the state does not have is zero from now on: their factor 0 would not hide a NaN.
  CLA_DEVICE void hide(unsigned char* stage) const {
    mark_rare();
    sync_threads();
#pragma unroll 1
    for (int at = thread_index(); at < S::kChunk * S::kColumns; at += S::kThreads) {
      const int row = at / S::kColumns, column = at % S::kColumns;
      if (factors().of_row(row) != 0.0f) continue;
      const_cast<In*>(tile(stage, S::kB, 0, 0))[row * kPitch + column] = In{};
      const_cast<In*>(tile(stage, S::kC, 0, 0))[row * kPitch + column] = In{};
    }
    sync_threads();
  }

  // out, products with the state, multiplied by what each row has of it.
  CLA_DEVICE void decay_rows(Output& out) const {
    if constexpr (!S::kDecayed) return;
#pragma unroll
    for (int i = 0; i < 2 * S::kRowBlocks; ++i) {
      const float factor = factors().of_state(i * 8 + lane_row());
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        float& number = out[i / 2][x / 2][x % 2 + i % 2 * 2];
        number = hidden(factor, number);
      }
    }
  }

  // --- scores ------------------------------------------------------------------------------------------

  CLA_DEVICE void choose_boost(const unsigned char* stage) {
    if constexpr (kBoosted) {
      float most = 0.0f;
      for (int i = lane_index(); i < S::kChunk; i += 32) most = larger(most, weights(stage)[i]);
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) most = larger(most, shuffle_xor(most, mask));
      boost = power_to(most, 0);
    }
  }

  // Tile (i, j) of P, j <= i or j >= i, has number x (x + 1) / 2 + y, x the larger and y the smaller of i and j.
  CLA_DEVICE void score(const unsigned char* stage) const {
    constexpr int kAllTiles = S::kScoreSets * S::kScoreTiles;
#pragma unroll
    for (int at = 0; at < kAllTiles; at += S::kWarps) {
      const int which = at + (kFewRegisters ? here(index) : index);
      if (which >= kAllTiles) break;
      const bool second = S::kScoreSets > 1 && which >= S::kScoreTiles;  // dv's
      const int in_set = second ? which - S::kScoreTiles : which;
      const int high = (in_set >= 1) + (in_set >= 3) + (in_set >= 6), low = in_set - high * (high + 1) / 2;
      const int row = S::kReverse ? low : high, column = S::kReverse ? high : low;
      const In* const a = tile(stage, second ? kK : S::kA, row, 0);
      const In* const b = tile(stage, second ? kQ : S::kB, column, 0);
      Sums sums;
      zero(sums);
#pragma unroll
      for (int d = 0; d < S::kColumnBlocks; ++d) {
        Input left, right;
        load<false, Factor::left, kPitch>(a + d * 16, left);
        load<false, Factor::right, kPitch>(b + d * 16, right);
        multiply<Part>(sums, left, right);
      }
      finish_scores(stage, which, row, column, !second && S::kJob != Job::dv, sums);
    }
  }

  CLA_DEVICE void finish_scores(const unsigned char* stage, int which, int row, int column, bool sloped,
                                Sums& sums) const {
    if constexpr (kWeighted) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int j = column * 16 + n * 8 + lane_column();
        const Float2 weight = *reinterpret_cast<const Float2*>(weights(stage) + j);
        const Float2 slope = *reinterpret_cast<const Float2*>(slopes(stage) + j);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          float& score = sums[n][x];
          score *= x % 2 == 0 ? weight.x : weight.y;
          if (sloped) score += x % 2 == 0 ? slope.x : slope.y;
          if constexpr (kBoosted) score *= boost;
        }
      }
    }
    if constexpr (S::kDecayed) factors().apply(row, column, sums);
    Sum parts;
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int beyond = S::kReverse ? row_of(x) - column_of(x) : column_of(x) - row_of(x);
      if (row == column && beyond > 0) sums[x / 4][x % 4] = 0.0f;
    }
    as_factor<Part, Factor::left>(sums, 1.0f, parts);
#pragma unroll
    for (int p = 0; p < S::kSumParts; ++p) {
      *scores(p, which) = {parts.x[p][0], parts.x[p][1], parts.x[p][2], parts.x[p][3]};
    }
    if constexpr (S::kJob == Job::forward && S::kNormalize) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float total = sums[0][2 * h] + sums[0][2 * h + 1] + sums[1][2 * h] + sums[1][2 * h + 1];
        total += shuffle_xor(total, 1);
        total += shuffle_xor(total, 2);
        if (lane_index() % 4 == 0) row_sums(column)[row * 16 + row_of(2 * h)] = total;
      }
      sync_warp();  // all lanes together again for what they do together: here, and below wherever some did more
    }
  }

  // --- products ----------------------------------------------------------------------------------------

  // The largest magnitude of the warp's part of the state. Columns that are not finite do not count, whose results are
  // lost anyway; in dkdv, where a lane has numbers of other columns of R beside theirs, they make it infinite.
  CLA_DEVICE float largest() const {
    float of_column[2] = {0.0f, 0.0f};
#pragma unroll
    for (int x = 0; x < 8 * S::kColumnBlocks; ++x) {
      float& most = of_column[x / 2 % 2];
      most = larger(most, state[x / 8][x / 4 % 2][x % 4]);
    }
    float most = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (S::kJob == Job::dkdv || is_finite(of_column[h])) most = larger(most, of_column[h]);
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) most = larger(most, shuffle_xor(most, mask));
    return most;
  }

  // For state_scale in dkdv, which finds those of all warps after the next barrier.
  CLA_DEVICE void publish_largest() const {
    if constexpr (!kNarrow<In>) return;
    const float most = largest();
    if (lane_index() == 0) floats(S::kLargest)[index] = most;
    sync_warp();
  }

  // What brings the state, in dkdv all of R, into float16's range, so that numbers 2^28 times smaller than the largest
  // one keep all their bits.
  CLA_DEVICE float state_scale() const {
    if constexpr (!kNarrow<In>) return 1.0f;
    float most = 0.0f;
    if constexpr (S::kJob == Job::dkdv) {
#pragma unroll
      for (int b = 0; b < S::kColumnBlocks; ++b) most = larger(most, floats(S::kLargest)[b]);
    } else {
      most = largest();
    }
    return power_to(most, 14);
  }

  // Products with what `scale` was multiplied into become products, multiplied by boost.
  CLA_DEVICE void scale_back(float scale, Output& out) const {
    if constexpr (!kNarrow<In>) return;
    const float back = inverse_of_power(scale) * boost;
#pragma unroll
    for (int x = 0; x < 8 * S::kRowBlocks; ++x) out[x / 8][x / 4 % 2][x % 4] *= back;
  }

  // out = A S, multiplied by boost; `scale` is state_scale(), with which `publish` was called in dkdv.
  CLA_DEVICE void multiply_state(const unsigned char* stage, float scale, Output& out) const {
#pragma unroll
    for (int i = 0; i < S::kRowBlocks; ++i) zero(out[i]);
#pragma unroll
    for (int d = 0; d < S::kColumnBlocks; ++d) {
      Sum right;
      if constexpr (S::kPublished) {
        load<false, Factor::right, kPitch>(strip(here(index)) + d * 16, right);
      } else {
        as_factor<Part, Factor::right>(state[d], scale, right);
      }
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
        Input left;
        load<false, Factor::left, kPitch>(tile(stage, S::kA, i, d), left);
        multiply<Part>(out[i], left, right);
      }
    }
    scale_back(scale, out);
  }

  // From one number for each of the columns g and g + 8 to those of columns 2 t, 2 t + 1 and 8 further on.
  CLA_DEVICE static void spread(float top, float bottom, float (&to)[4]) {
#pragma unroll
    for (int x = 0; x < 4; ++x) to[x] = shuffle_from(x < 2 ? top : bottom, 4 * (lane_column() + x % 2));
  }

  // Tile c as a right factor. The zeros of P would carry its NaN and infinities to other rows: where there is one,
  // `clean` makes it zero until the scores have been multiplied. True if there was one.
  CLA_DEVICE bool load_c(const unsigned char* stage, Tile which, Input (&c)[S::kRowBlocks]) const {
    const Fragment<1> nothing{};
    Sums sums;
    zero(sums);
#pragma unroll
    for (int j = 0; j < S::kRowBlocks; ++j) {
      load<true, Factor::right, kPitch>(tile(stage, which, j, index), c[j]);
      multiply_orders<Part, 0, 1>(sums, nothing, c[j]);
    }
    return any_lane(sums[0][0] + sums[0][1] + sums[1][0] + sums[1][1] != 0.0f);
  }

  // What is known of the rows of a column that are not finite: with decays all of them, for one may hide another; else
  // the first (last in dkdv), of which `kNoRow` says that there is none.
  using Dirty = std::conditional_t<S::kDecayed, RowSet, int>;
  static constexpr int kNoRow = S::kReverse ? -1 : S::kChunk;
  CLA_DEVICE static constexpr Dirty clean_column() {
    if constexpr (S::kDecayed) {
      return {};
    } else {
      return kNoRow;
    }
  }
  // Whether a number of c in row `dirty` reaches this row of the output.
  CLA_DEVICE static bool reached(int row, int dirty) { return S::kReverse ? row <= dirty : row >= dirty; }

  // Returns which rows of column lane % 16 of c are not finite. No other warp may be reading these columns.
  CLA_DEVICE Dirty clean(unsigned char* stage, Tile which) const {
    mark_rare();
    sync_warp();  // other lanes' loads of these columns come first: here, and in make_dirty
    const int lane = here(lane_index());
    In* const column = dirty_column(stage, which, lane);
    Dirty found = clean_column();
#pragma unroll 1
    for (int i = lane / 16; i < S::kChunk; i += 2) {
      if (is_finite(number(column[i * kPitch]))) continue;
      if constexpr (S::kDecayed) {
        found.add(i);
      } else if (S::kReverse || found == kNoRow) {
        found = i;
      }
      column[i * kPitch] = In{};
    }
    if constexpr (S::kDecayed) {
      const uint32_t low_half = bits_of(shuffle_xor(from_bits(static_cast<uint32_t>(found.bits)), 16));
      const uint32_t high_half = bits_of(shuffle_xor(from_bits(static_cast<uint32_t>(found.bits >> 32)), 16));
      found.bits |= static_cast<uint64_t>(high_half) << 32 | low_half;
      sync_warp();
      return found;
    } else {
      const int other = static_cast<int>(shuffle_xor(static_cast<float>(found), 16));
      sync_warp();
      return (other < found) != S::kReverse ? other : found;
    }
  }

  CLA_DEVICE In* dirty_column(unsigned char* stage, Tile which, int lane) const {
    return reinterpret_cast<In*>(stage + S::in_stage(which) * S::kTile) + index * 16 + lane % 16;
  }

  // c has a NaN again, and so will the state.
  CLA_DEVICE void make_dirty(unsigned char* stage, Tile which, const Dirty& dirty) const {
    mark_rare();
    sync_warp();
    In* const column = dirty_column(stage, which, here(lane_index()));
    if constexpr (S::kDecayed) {
#pragma unroll 1
      for (int i = here(lane_index()) / 16; i < S::kChunk; i += 2) {
        if (dirty.has(i)) column[i * kPitch] = not_a_number(In{});
      }
    } else {
      if (dirty != kNoRow) column[dirty * kPitch] = not_a_number(In{});
    }
    sync_warp();
  }

  CLA_DEVICE void poison_vector(const Dirty& dirty) {
    mark_rare();
    int found = 0;
    if constexpr (S::kDecayed) {
#pragma unroll 1
      for (int i = 0; i < S::kChunk; ++i) found |= dirty.has(i) && factors().of_row(i) != 0.0f;
      sync_warp();
    } else {
      found = dirty;
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int lane = x / 2 * 8 + here(lane_column()) + x % 2;
      const int first = static_cast<int>(shuffle_from(static_cast<float>(found), lane));
      if (first != (S::kDecayed ? 0 : kNoRow)) vector[x] = from_bits(0x7fc00000u);
    }
  }

  // out += P C, of the second set of scores for dv.
  template <bool kSecond>
  CLA_DEVICE void add_scores(const Input (&c)[S::kRowBlocks], Output& out) const {
#pragma unroll
    for (int i = 0; i < S::kRowBlocks; ++i) {
#pragma unroll
      for (int j = S::kReverse ? i : 0; S::kReverse ? j < S::kRowBlocks : j <= i; ++j) {
        const int which = (S::kReverse ? j * (j + 1) / 2 + i : i * (i + 1) / 2 + j) + kSecond * S::kScoreTiles;
        Sum left;
#pragma unroll
        for (int p = 0; p < S::kSumParts; ++p) {
          const Bytes16 from = *scores(p, which);
#pragma unroll
          for (int r = 0; r < 4; ++r) left.x[p][r] = from.x[r];
        }
        multiply<Part>(out[i], left, c[j]);
      }
    }
  }

  // out += P C for tile `which`, left in c. Returns whether any number of it is not finite; those are taken for zero,
  // and dirty_rows is what `clean` found.
  template <bool kSecond = false>
  CLA_DEVICE bool add_finite(unsigned char* stage, Tile which, Input (&c)[S::kRowBlocks], Output& out,
                             Dirty& dirty_rows) const {
    const bool dirty = load_c(stage, which, c);
    if (dirty) [[unlikely]] {
      dirty_rows = clean(stage, which);
      load_c(stage, which, c);
    }
    add_scores<kSecond>(c, out);
    if (dirty) [[unlikely]] make_dirty(stage, which, dirty_rows);
    return dirty;
  }

  // S^T += C^T B, C's rows weighted where the normaliser or decays say so.
  CLA_DEVICE void update(unsigned char* stage) {
    if constexpr (S::kDecayed) {
      if (resets) [[unlikely]] hide(stage);
      passed = product(passed, factors().total());
    }
    if constexpr (kWeighted || S::kDecayed) {
#pragma unroll
      for (int first = 0; first < S::kRowBlocks; first += kWeighed) {
        Weighted scaled[kWeighed];
        weigh(stage, first, scaled);
        add_products(stage, first, scaled);
      }
    } else {
      Input c[S::kRowBlocks];
#pragma unroll
      for (int j = 0; j < S::kRowBlocks; ++j) load<true, Factor::left, kPitch>(tile(stage, S::kC, j, index), c[j]);
      add_products(stage, 0, c);
    }
  }

  // Of blocks of rows from `first` on, with which the state's numbers decay.
  template <int kParts, int kBlocks>
  CLA_DEVICE void add_products(const unsigned char* stage, int first, const Fragment<kParts> (&c)[kBlocks]) {
#pragma unroll
    for (int d = 0; d < S::kColumnBlocks; ++d) {
      Sums sums;  // of this chunk alone: tensor cores cut off what they add, ordinary additions round
      zero(sums);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        Input right;
        load<true, Factor::right, kPitch>(tile(stage, S::kB, first + j, d), right);
        multiply<Part>(sums, c[j], right);
      }
      if constexpr (S::kDecayed) {
        const float all = first == 0 ? factors().total() : 1.0f;
#pragma unroll
        for (int x = 0; x < 8; ++x) state[d][x / 4][x % 4] = hidden(all, state[d][x / 4][x % 4]);
      }
      add(state[d], sums, kBoosted ? inverse_of_power(boost) : 1.0f);
    }
  }

  // c[j] weights[j], and vector += the sum of c[j] slopes[j], both with what the state has of row j.
  CLA_DEVICE void weigh(const unsigned char* stage, int first_block, Weighted (&scaled)[kWeighed]) {
    float total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < kWeighed; ++j) {
      Input c;
      load<true, Factor::left, kPitch>(tile(stage, S::kC, first_block + j, index), c);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = (first_block + j) * 16 + r / 2 * 8 + lane_column();
        Float2 weight{1.0f, 1.0f}, slope{0.0f, 0.0f};
        if constexpr (kWeighted) {
          weight = *reinterpret_cast<const Float2*>(weights(stage) + row);
          slope = *reinterpret_cast<const Float2*>(slopes(stage) + row);
        }
        if constexpr (S::kDecayed) {
          const float x = factors().of_row(row), y = factors().of_row(row + 1);
          weight = {hidden(x, weight.x), hidden(y, weight.y)};
          slope = {hidden(x, slope.x), hidden(y, slope.y)};
        }
        const float first = first_of<Part>(c, r), second = second_of<Part>(c, r);
        split<Part>(first * (weight.x * boost), second * (weight.y * boost), r, scaled[j]);
        total[r % 2] += first * slope.x;
        total[r % 2] += second * slope.y;
      }
    }
    if constexpr (!kWeighted) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      total[h] += shuffle_xor(total[h], 1);
      total[h] += shuffle_xor(total[h], 2);
    }
    decay_vector();
    float columns[4];
    spread(total[0], total[1], columns);
#pragma unroll
    for (int x = 0; x < 4; ++x) vector[x] += columns[x];
  }

  CLA_DEVICE void decay_vector() {
    if constexpr (!S::kDecayed) return;
    const float all = factors().total();
#pragma unroll
    for (int x = 0; x < 4 * S::kVectors; ++x) vector[x] = hidden(all, vector[x]);
  }

  // vector += the sums over the rows of its columns of a tile, with what the state has of each.
  CLA_DEVICE void add_rows(const unsigned char* stage, Tile which) {
    if constexpr (S::kDecayed) {
      Sums sums;
      zero(sums);
#pragma unroll
      for (int j = 0; j < S::kRowBlocks; ++j) {
        Weighted left;
        Input right;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int row = j * 16 + r / 2 * 8 + lane_column();
          split<Part>(factors().of_row(row), factors().of_row(row + 1), r, left);
        }
        load<true, Factor::right, kPitch>(tile(stage, which, j, index), right);
        multiply<Part>(sums, left, right);
      }
      decay_vector();
      add_to_vector(sums);
      return;
    }
    Fragment<1> all_rows;
    ones<Part>(false, all_rows);
#pragma unroll
    for (int b = 0; b < S::kVectors; ++b) {
      Sums sums;
      zero(sums);
#pragma unroll
      for (int j = 0; j < S::kRowBlocks; ++j) {
        Input right;
        load<true, Factor::right, kPitch>(tile(stage, which, j, index + b * S::kWarps), right);
        multiply<Part>(sums, all_rows, right);
      }
      add_to_vector(sums, b);
    }
  }
  CLA_DEVICE void add_to_vector(const Sums& sums, int which = 0) {  // whose rows are all alike
#pragma unroll
    for (int x = 0; x < 4; ++x) vector[4 * which + x] += sums[x / 2][x % 2];
  }
};

}  // namespace cla::cuda
