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

// Chunks of 64 rows, fewer where shared memory or registers are short.
constexpr int row_blocks(int capability, int bytes, int column_blocks) {
  if (column_blocks == 8) return capability < 80 && bytes == 4 ? 1 : 2;
  return capability < 80 || bytes == 4 ? 2 : 4;
}

enum Tile : int { kA, kB, kC, kQueries };  // the arrays of a scan, in the order of a stage

// All that is known when a kernel is compiled, and where everything lies in its shared memory, in bytes.
// Arrays have at most 16 * kColumnBlocks columns, and exactly so many in aligned rows if kAligned.
template <class In_, Normaliser kNormaliser_, int kColumnBlocks_, bool kAligned_, int kCapability = CLA_CAPABILITY>
struct Shape {
  using In = In_;
  using Part = typename Kind<In>::Part;
  static constexpr Normaliser kNormaliser = kNormaliser_;
  static constexpr bool kAligned = kAligned_, kReverse = kNormaliser == Normaliser::dkdv;  // order of weights
  static constexpr int kBytes = sizeof(In), kColumnBlocks = kColumnBlocks_, kColumns = 16 * kColumnBlocks;
  static constexpr int kRowBlocks = row_blocks(kCapability, kBytes, kColumnBlocks), kChunk = 16 * kRowBlocks;
  static constexpr int kThreads = 32 * kColumnBlocks;  // a warp for 16 columns of c
  static constexpr int kTiles = kNormaliser == Normaliser::dq ? 4 : 3;
  static constexpr int kScoreTiles = kRowBlocks * (kRowBlocks + 1) / 2;
  // Parts of a number (see mma.cuh) that is a factor. One of a score or a sum is enough but where sums cancel, as
  // under the normaliser's slope; of a weighted row it is not, for its sum is a float32 that the caller gets.
  static constexpr int kInputParts = Kind<In>::kParts;
  static constexpr int kSumParts = kBytes == 4 ? 3 : kNormaliser == Normaliser::dq ? 2 : 1;
  static constexpr int kWeightedParts = kBytes == 4 ? 3 : 2;

  // Rows start in different banks, at multiples of 16 bytes.
  static constexpr int kPitch = kColumns + 8, kOutPitch = 16 + 8;
  static constexpr int kTile = kChunk * kPitch * kBytes;
  static constexpr int kNumbers = kChunk * 4;  // one float32 a row
  static constexpr int kScores = 0, kScoreTile = 32 * 16;
  static constexpr int kOut = kScores + kSumParts * kScoreTiles * kScoreTile;
  static constexpr int kOutOfWarp = kBytes == 2 ? 16 * kOutPitch * 2 : 0;
  // forward: for every row the sums of its scores by tile and q . z, then the inverse, then z itself;
  // dq: for every row each warp's part of queries . out.
  static constexpr int kRowSums = kOut + kColumnBlocks * kOutOfWarp;
  static constexpr int kInverse = kRowSums + (kRowBlocks + 1) * kNumbers;
  static constexpr int kZ = kInverse + kNumbers;
  static constexpr int kRing = kNormaliser == Normaliser::forward ? kZ + kColumns * 4
                               : kNormaliser == Normaliser::dq    ? kRowSums + kColumnBlocks * kNumbers
                                                                  : kRowSums;
  // Within a stage.
  static constexpr int kWeights = kTiles * kTile;
  static constexpr int kSlopes = kWeights + kNumbers;
  static constexpr int kStage = kNormaliser == Normaliser::dkdv ? kSlopes + kNumbers
                                : kNormaliser == Normaliser::dq ? kWeights + kNumbers
                                                                : kWeights;
};

CLA_DEVICE int64_t offset_of(const Scans& s, const Rows& rows, int head) {
  return head / s.heads_of_a_batch * rows.batch + head % s.heads_of_a_batch * rows.head;
}

// Where one thread's copies of an array's chunks come from: every kStep-th row, 16 bytes of it or one number.
template <class S>
struct Source {
  using In = typename S::In;
  static constexpr int kAtOnce = 16 / S::kBytes;
  static constexpr int kPieces = S::kColumns / kAtOnce;

  const Rows& rows;
  int row, column;
  const char* from;

  CLA_DEVICE bool in_pieces() const { return S::kAligned || rows.aligned; }

  CLA_DEVICE Source(const Scans& s, const Rows& of, int head, int first) : rows(of) {
    const int across = in_pieces() ? kPieces : S::kColumns;
    row = thread_index() / across;
    column = thread_index() % across * (in_pieces() ? kAtOnce : 1);
    from = rows.data + offset_of(s, rows, head) + (first + row) * rows.row + column * S::kBytes;
  }

  // Starts the copies of the next chunk, which has `count` rows; what lies beyond becomes zero.
  CLA_DEVICE void copy_chunk(int count, unsigned char* tile) {
    In* const to = reinterpret_cast<In*>(tile) + row * S::kPitch + column;
    if (in_pieces()) {
      constexpr int kStep = S::kThreads / kPieces;
#pragma unroll
      for (int i = 0; i < S::kChunk; i += kStep, from += kStep * rows.row) {
        cp_async<16>(to + i * S::kPitch, from, row + i < count && (S::kAligned || column < rows.columns));
      }
    } else {
      constexpr int kStep = S::kThreads / S::kColumns;
#pragma unroll 4
      for (int i = 0; i < S::kChunk; i += kStep, from += kStep * rows.row) {
        const bool wanted = row + i < count && column < rows.columns;
        to[i * S::kPitch] = wanted ? *reinterpret_cast<const In*>(from) : In{};
      }
    }
  }
};

// All arrays of a block's scan.
template <class S>
struct Sources {
  Source<S> a, b, c, queries;
  const float *weights, *slopes;  // of this thread's row
  bool has_slopes;                // or zeros

  CLA_DEVICE Sources(const Scans& s, const Scan& scan, int head, int first)
      : a(s, scan.a, head, first),
        b(s, scan.b, head, first),
        c(s, scan.c, head, first),
        queries(s, scan.queries, head, first) {
    const int64_t row = first + thread_index();
    const int64_t number = head * s.length + (S::kReverse ? s.length - 1 - row : row);
    weights = scan.weights + number;
    slopes = (scan.slopes == nullptr ? scan.weights : scan.slopes) + number;
    has_slopes = scan.slopes != nullptr;
  }

  CLA_DEVICE static void copy_numbers(const float* from, bool wanted, int count, unsigned char* to) {
#pragma unroll
    for (int i = 0; i < S::kChunk; i += S::kThreads) {
      const int row = thread_index() + i;
      if (row >= S::kChunk) break;
      cp_async<4>(to + row * 4, from + (S::kReverse ? -i : i), wanted && row < count);
    }
  }

  // What a launch for the sums alone does not read stays where it is.
  CLA_DEVICE void copy_chunk(int count, bool only_sums, unsigned char* stage) {
    constexpr int kNextNumber = S::kReverse ? -S::kChunk : S::kChunk;
    if (count > 0) {
      if (!only_sums) a.copy_chunk(count, stage + kA * S::kTile);
      b.copy_chunk(count, stage + kB * S::kTile);
      c.copy_chunk(count, stage + kC * S::kTile);
      if (S::kNormaliser == Normaliser::dq && !only_sums) queries.copy_chunk(count, stage + kQueries * S::kTile);
      if constexpr (S::kStage > S::kWeights) {
        copy_numbers(weights, true, count, stage + S::kWeights);
        weights += kNextNumber;
      }
      if constexpr (S::kStage > S::kSlopes) {
        copy_numbers(slopes, has_slopes, count, stage + S::kSlopes);
        slopes += kNextNumber;
      }
    }
    cp_async_commit();
  }
};

}  // namespace cla::cuda
