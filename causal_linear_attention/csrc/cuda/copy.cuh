// Shared memory of a block, and the copies that fill it: a ring of stages, each with a chunk of every array.
#pragma once

#include "mma.cuh"
#include "scan.h"

namespace cla::cuda {

struct alignas(16) Bytes16 {
  uint32_t x[4];
};
struct alignas(8) Float2 {
  float x, y;
};

// Two neighbours, the first at an even place.
CLA_DEVICE void store_pair(float x, float y, float* to) { *reinterpret_cast<Float2*>(to) = {x, y}; }
template <class In>
CLA_DEVICE void store_pair(float x, float y, In* to) {
  *reinterpret_cast<uint32_t*>(to) = pack(x, y, In{});
}

// Chunks of 64 rows, fewer where shared memory or registers are short.
constexpr int row_blocks(Job job, int capability, int bytes, int column_blocks, bool decayed) {
  // Tables of decays leave the backward pass of wider heads no room for more in 64 KB.
  if (decayed && job != Job::forward && capability < 80 && bytes * column_blocks >= 16) return 1;
  if (column_blocks >= 8) return capability < 80 && bytes == 4 ? 1 : 2;
  return job != Job::forward || capability < 80 || bytes == 4 ? 2 : 4;
}

// How many warps put their part of R into shared memory at once, all of them if there is room.
constexpr int strips_at_once(int capability, int bytes, int column_blocks) {
  if (column_blocks != 8) return column_blocks < 8 ? column_blocks : 0;
  return bytes == 4 ? 2 : capability < 80 ? 4 : 8;
}

// Heads of more columns are wide: a block has only so many warps, and as many times 16 columns of the outputs.
constexpr int kMostWarps = 8;
constexpr int warps(int column_blocks) { return column_blocks < kMostWarps ? column_blocks : kMostWarps; }

// Blocks that must fit a multiprocessor by their registers: 168 a thread, 128 for heads of more than 64 columns in 16
// bits. float32 and wide heads may have 255: shared memory has no room for more blocks of float32, and half of them
// hold a wide head's part of the state.
constexpr int least_blocks(Job job, int bytes, int column_blocks) {
  if (column_blocks > kMostWarps) return 1;
  if (bytes == 2) return column_blocks < 8 ? 12 / column_blocks : 2;
  return column_blocks == 8 ? 1 : (job == Job::forward ? 12 : 8) / column_blocks;
}

// All that is known when a kernel is compiled, and where everything lies in its shared memory, in bytes.
// Arrays have at most 16 * kColumnBlocks columns, and exactly so many in aligned rows if kAligned. The outputs of wide
// heads are shared out among blocks: of C a block has only the columns of its own output.
template <class In_, Job kJob_, bool kNormalize_, int kColumnBlocks_, bool kAligned_, bool kDecayed_ = false,
          int kCapability = CLA_CAPABILITY>
struct Shape {
  using In = In_;
  using Part = typename Kind<In>::Part;
  static constexpr Job kJob = kJob_;
  static constexpr bool kNormalize = kNormalize_, kAligned = kAligned_, kDecayed = kDecayed_;
  static constexpr bool kBackward = kJob != Job::forward;
  static constexpr bool kReverse = kJob >= Job::dkdv;  // chunks from the last to the first, P with j >= i
  static constexpr bool kFromDepth = kBackward && kJob != Job::dv;  // whether the warps share out q's and k's columns
  static constexpr Tile kA =
      kJob == Job::forward ? kQ : kJob == Job::dq ? kGrad : kJob == Job::dv ? kK : kV;
  static constexpr Tile kB =
      kJob == Job::forward ? kK : kJob == Job::dq ? kV : kJob == Job::dv ? kQ : kGrad;
  static constexpr Tile kC =
      kJob == Job::forward ? kV : kJob == Job::dq ? kK : kJob == Job::dv ? kGrad : kQ;
  static constexpr int kSummed = 1 << kB | 1 << kC, kRead = kSummed | 1 << kA;  // bits of what one output takes
  static constexpr int kBytes = sizeof(In), kColumnBlocks = kColumnBlocks_, kColumns = 16 * kColumnBlocks;
  static constexpr int kRowBlocks = row_blocks(kJob, kCapability, kBytes, kColumnBlocks, kDecayed);
  static constexpr int kChunk = 16 * kRowBlocks;
  static constexpr bool kWide = kColumnBlocks > kMostWarps;
  static constexpr int kWarps = warps(kColumnBlocks), kOwnColumns = 16 * kWarps;
  static constexpr int kThreads = 32 * kWarps;  // a warp for 16 columns of c
  // Of the state and, in fours, of the vector beside it a thread's numbers: forward has all of z, whoever's columns.
  static constexpr int kVectors = kJob == Job::forward ? kColumnBlocks / kWarps : 1;
  // And, with decays, that of a segment.
  static constexpr int kSums = 8 * kColumnBlocks + 4 * kVectors + kDecayed;
  static constexpr int kTiles = kBackward && !kWide ? 4 : 3;
  CLA_DEVICE static constexpr int in_stage(int tile) { return !kWide ? tile : tile == kA ? 0 : tile == kB ? 1 : 2; }
  static constexpr int kScoreTiles = kRowBlocks * (kRowBlocks + 1) / 2, kScoreSets = kJob == Job::dkdv ? 2 : 1;
  static constexpr int kStripsAtOnce = strips_at_once(kCapability, kBytes, kColumnBlocks);
  // Whether every warp's part of R lies in shared memory as a factor, for dk as well as for dv.
  static constexpr bool kPublished = kReverse && kBytes == 2 && kStripsAtOnce == kColumnBlocks;
  // Parts of a number (see mma.cuh) that is a factor. One of a score or a sum is enough but where sums cancel, as
  // under the normaliser's slope; of a weighted row it is not, for its sum is a float32 that the caller gets.
  static constexpr int kInputParts = Kind<In>::kParts;
  static constexpr int kSumParts = kBytes == 4 ? 3 : kJob == Job::dq && kNormalize ? 2 : 1;
  static constexpr int kWeightedParts = kBytes == 4 ? 3 : 2;

  // Rows start in different banks, at multiples of 16 bytes.
  static constexpr int kPitch = kColumns + 8, kOutPitch = 16 + 8;
  static constexpr int kTile = kChunk * kPitch * kBytes;
  static constexpr int kNumbers = kChunk * 4;  // one float32 a row
  static constexpr int kScores = 0, kScoreTile = 32 * 16;
  static constexpr int kScoreParts = kBackward ? (kBytes == 4 ? 6 : 2) : kSumParts;  // enough for both jobs
  static constexpr int kOut = kScores + kScoreParts * kScoreTiles * kScoreTile;
  static constexpr int kOutOfWarp = kBytes == 2 ? 16 * kOutPitch * 2 : 0;
  static constexpr int kWork = kOut + kWarps * kOutOfWarp;
  // forward: for every row the sums of its scores by tile and q . z, then the inverse, then z itself.
  static constexpr int kInverse = kWork + (kRowBlocks + 1) * kNumbers;
  static constexpr int kZ = kInverse + kNumbers;
  // dkdv: strips of R and the largest number of each; dq, in the same place: for every row each warp's part of q . dq.
  static constexpr int kLargest = kWork + kStripsAtOnce * 16 * kPitch * kBytes;
  static constexpr int kFactors = kBackward ? kLargest + 32 : kNormalize ? kZ + kColumns * 4 : kWork;
  // With decays: a table of factors for each block of rows (see decays.cuh); in the backward pass also each warp's part
  // of k . dk for every row, and of one number.
  static constexpr int kFactorPitch = 24;
  static constexpr int kProjections = kFactors + kRowBlocks * 16 * kFactorPitch * 4;
  static constexpr int kParts = kProjections + (kBackward ? kWarps * kNumbers : 0);
  static constexpr int kRing = kDecayed ? kParts + 32 : kFactors;
  // Within a stage.
  static constexpr int kWeights = kTiles * kTile;
  static constexpr int kSlopes = kWeights + kNumbers;
  static constexpr int kDecays = kBackward && kNormalize ? kSlopes + kNumbers : kWeights;
  static constexpr int kStage = kDecayed ? kDecays + kNumbers : kDecays;
};

// The rows that a block is at work on: all of a sequence's, whose rows end at `end`, or a segment of them.
struct Place {
  int head = 0;      // whose rows
  int sequence = 0;  // whose states
  int begin = 0, rows = 0, end = 0;
  int segment = 0;
  int column = 0;  // the first of the block's own columns
};

CLA_DEVICE int64_t offset_of(const Launch& s, const Rows& rows, int head) {
  return head / s.heads_of_a_batch * rows.batch + head % s.heads_of_a_batch / rows.group * rows.head;
}
// A whole sequence of one head.
template <bool kWide>
CLA_DEVICE Place sequence_of(const Launch& s, int number) {
  if constexpr (kWide) number /= s.parts;
  if (s.bounds == nullptr) return {number, number, 0, s.length, s.length};
  const int* const bounds = s.bounds + number / s.heads_of_a_batch;
  return {number % s.heads_of_a_batch, number, bounds[0], bounds[1] - bounds[0], bounds[1]};
}
CLA_DEVICE Place segment_of(Place place, int segment, int rows_of_segment) {
  place.segment = segment;
  place.begin += segment * rows_of_segment;
  place.rows = place.end - place.begin < rows_of_segment ? place.end - place.begin : rows_of_segment;
  return place;
}

// Where the walk over a segment begins: its first chunk, or its last one.
template <class S>
CLA_DEVICE int first_row(const Place& place) {
  return place.begin + (S::kReverse && place.rows > 0 ? (place.rows - 1) / S::kChunk * S::kChunk : 0);
}

// Where one thread's copies of an array's chunks come from: every kStep-th row, 16 bytes of it or one number.
template <class S>
struct Source {
  using In = typename S::In;
  static constexpr int kAtOnce = 16 / S::kBytes;
  static constexpr int kPieces = S::kColumns / kAtOnce;

  const Rows& rows;
  const int columns;  // of which there are no more
  const char* from;

  CLA_DEVICE bool in_pieces() const { return S::kAligned || rows.aligned; }
  // Whether row and column are found again for every chunk, where registers are too few to keep them.
  static constexpr bool kAgain = !S::kAligned || ((S::kBackward || S::kDecayed) && CLA_CAPABILITY >= 80);
  CLA_DEVICE static int thread() { return kAgain ? here(thread_index()) : thread_index(); }
  CLA_DEVICE int row() const { return in_pieces() ? thread() / kPieces : thread() / S::kColumns; }
  CLA_DEVICE int column() const {
    return in_pieces() ? thread() % kPieces * kAtOnce : thread() % S::kColumns;
  }

  // All columns, or the block's own ones.
  CLA_DEVICE Source(const Launch& s, Tile tile, const Place& place)
      : rows(s.inputs[tile]), columns(columns_of(rows, tile, place)) {
    const int first = S::kWide && tile == S::kC ? place.column : 0;
    from = rows.data + offset_of(s, rows, place.head) + (first_row<S>(place) + row()) * rows.row +
           (first + column()) * S::kBytes;
  }
  CLA_DEVICE static int columns_of(const Rows& rows, Tile tile, const Place& place) {
    if (!S::kWide || tile != S::kC) return rows.columns;
    const int left = rows.columns - place.column;
    return left < S::kOwnColumns ? left : S::kOwnColumns;
  }
  CLA_DEVICE bool has(int column) const { return (S::kAligned && !S::kWide) || column < columns; }

  // Starts the copies of the next chunk, which has `count` rows; what lies beyond becomes zero.
  CLA_DEVICE void copy_chunk(int count, unsigned char* tile) {
    const int row = this->row(), column = this->column();
    In* const to = reinterpret_cast<In*>(tile) + row * S::kPitch + column;
    if (in_pieces()) {
      constexpr int kStep = S::kThreads / kPieces;
#pragma unroll
      for (int i = 0; i < S::kChunk; i += kStep, from += kStep * rows.row) {
        cp_async<16>(to + i * S::kPitch, from, row + i < count && has(column));
      }
    } else {
      constexpr int kStep = S::kThreads / S::kColumns;
#pragma unroll 4
      for (int i = 0; i < S::kChunk; i += kStep, from += kStep * rows.row) {
        const bool wanted = row + i < count && has(column);
        to[i * S::kPitch] = wanted ? *reinterpret_cast<const In*>(from) : In{};
      }
    }
    if constexpr (S::kReverse) from -= 2 * S::kChunk * rows.row;
  }
};

constexpr int kAll = 1 << kK | 1 << kV | 1 << kQ | 1 << kGrad;

// A block's inputs: those of kWanted's bits.
template <class S, int kWanted>
struct Sources {
  static constexpr bool kWeighted = S::kBackward && S::kNormalize;
  static constexpr bool kSloped = kWeighted && (S::kWide || S::kJob == Job::dkdv);
  Source<S> k, v, q, grad;
  const float *weights = nullptr, *slopes = nullptr;  // of this thread's row
  const char* decays = nullptr;
  int64_t decay_row = 0;  // bytes from one to the next

  CLA_DEVICE Sources(const Launch& s, const float* slopes_of_all, const Place& place)
      : k(s, kK, place), v(s, kV, place), q(s, kQ, place), grad(s, kGrad, place) {
    const int64_t number = static_cast<int64_t>(place.head) * s.length + first_row<S>(place) + thread_index();
    if constexpr (kWeighted) weights = s.inverse + number;
    if constexpr (kSloped) slopes = slopes_of_all + number;
    if constexpr (S::kDecayed) {
      decay_row = s.decay.row;
      decays = s.decay.data + offset_of(s, s.decay, place.head) + (first_row<S>(place) + thread_index()) * decay_row;
    }
  }

  CLA_DEVICE static void copy_numbers(const float*& from, int count, unsigned char* to) {
#pragma unroll
    for (int i = 0; i < S::kChunk; i += S::kThreads) {
      const int row = thread_index() + i;
      if (row >= S::kChunk) break;
      cp_async<4>(to + row * 4, from + i, row < count);
    }
    from += S::kReverse ? -S::kChunk : S::kChunk;
  }

  CLA_DEVICE void copy_decays(int count, unsigned char* to) {
#pragma unroll
    for (int i = 0; i < S::kChunk; i += S::kThreads) {
      const int row = thread_index() + i;
      if (row >= S::kChunk) break;
      cp_async<4>(to + row * 4, decays + i * decay_row, row < count);
    }
    decays += (S::kReverse ? -S::kChunk : S::kChunk) * decay_row;
  }

  CLA_DEVICE void copy_chunk(int count, unsigned char* stage) {
    if (count > 0) {
      if constexpr (kWanted >> kK & 1) k.copy_chunk(count, stage + S::in_stage(kK) * S::kTile);
      if constexpr (kWanted >> kV & 1) v.copy_chunk(count, stage + S::in_stage(kV) * S::kTile);
      if constexpr (kWanted >> kQ & 1) q.copy_chunk(count, stage + S::in_stage(kQ) * S::kTile);
      if constexpr (kWanted >> kGrad & 1) grad.copy_chunk(count, stage + S::in_stage(kGrad) * S::kTile);
      if constexpr (kWeighted) copy_numbers(weights, count, stage + S::kWeights);
      if constexpr (kSloped) copy_numbers(slopes, count, stage + S::kSlopes);
      if constexpr (S::kDecayed) copy_decays(count, stage + S::kDecays);
    }
    cp_async_commit();
  }
};

// The chunks of a segment, one after the other in shared memory.
template <class S, int kWanted>
class Ring {
 public:
  // Starts the first copies. Nobody may be reading the ring any more.
  CLA_DEVICE Ring(const Launch& s, const float* slopes, const Place& place)
      : sources_(s, slopes, place),
        stages_(s.stages),
        to_copy_(place.rows),
        memory_(shared_memory() + S::kRing),
        to_(memory_),
        stage_(memory_) {
    for (int x = 0; x < stages_ - 1; ++x) start();
  }

  // visit(stage, number of rows or more) for the chunks of the next `rows` rows.
  template <class Visit>
  CLA_DEVICE void walk(int rows, const Visit& visit) {
    for (int left = rows; left > 0; left = after_next(left)) {
      wait_for_stage();
      start();
      if (stages_ == 1) {
        cp_async_wait<0>();
        sync_threads();
      }
      sync_warp();
      visit(stage_, left - (S::kReverse ? after_next(left) : 0));
      stage_ = next(stage_);
    }
  }

 private:
  // Only the last chunk, which comes first in dkdv, has fewer rows than the others.
  CLA_DEVICE static int after_next(int left) {
    return S::kReverse ? (left - 1) / S::kChunk * S::kChunk : left - S::kChunk;
  }
  CLA_DEVICE unsigned char* next(unsigned char* stage) const {
    return stage + S::kStage == memory_ + stages_ * S::kStage ? memory_ : stage + S::kStage;
  }
  CLA_DEVICE void start() {
    const int after = after_next(to_copy_);
    sources_.copy_chunk(to_copy_ - (S::kReverse ? after : 0), to_);
    to_copy_ = after;
    to_ = next(to_);
  }
  // Until the oldest stage is there for all threads and the next one to be filled no longer in use.
  CLA_DEVICE void wait_for_stage() const {
    if (stages_ > 3) {
      cp_async_wait<2>();
    } else if (stages_ > 2) {
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    sync_threads();
  }

  Sources<S, kWanted> sources_;
  const int stages_;
  int to_copy_;
  unsigned char *const memory_, *to_, *stage_;
};

}  // namespace cla::cuda
