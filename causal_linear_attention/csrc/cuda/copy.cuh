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

// All that is known when a kernel is compiled, and where everything lies in its shared memory, in bytes.
// Arrays have at most 16 * kColumnBlocks columns, and exactly so many in aligned rows if kAligned.
template <class In_, Normaliser kNormaliser_, int kColumnBlocks_, bool kAligned_, int kCapability = CLA_CAPABILITY>
struct Shape {
  using In = In_;
  using Part = typename Kind<In>::Part;
  static constexpr Normaliser kNormaliser = kNormaliser_;
  static constexpr bool kAligned = kAligned_;
  static constexpr int kBytes = sizeof(In), kColumnBlocks = kColumnBlocks_, kColumns = 16 * kColumnBlocks;
  static constexpr int kRowBlocks = row_blocks(kCapability, kBytes, kColumnBlocks), kChunk = 16 * kRowBlocks;
  static constexpr int kThreads = 32 * kColumnBlocks;  // a warp for 16 columns of c
  static constexpr int kTiles = kNormaliser == Normaliser::dq ? 4 : 3;  // a, b, c, queries
  static constexpr int kScoreTiles = kRowBlocks * (kRowBlocks + 1) / 2;
  static constexpr int kInputParts = Kind<In>::kParts;
#ifndef XS
#define XS 2
#define XT 2
#define XW 2
#endif
  static constexpr int kScoreParts = kBytes == 4 ? 3 : kNormaliser == Normaliser::none ? 1 : XS;
  static constexpr int kStateParts = kBytes == 4 ? 3 : kNormaliser == Normaliser::none ? 1 : XT;
  static constexpr int kWeightedParts = kBytes == 4 ? 3 : XW;

  // Rows start in different banks, at multiples of 16 bytes.
  static constexpr int kPitch = kColumns + 8, kOutPitch = 16 + 8;
  static constexpr int kTile = kChunk * kPitch * kBytes;
  static constexpr int kNumbers = kChunk * 4;  // one float32 a row
  static constexpr int kScores = 0, kScoreTile = 32 * 16;
  static constexpr int kOut = kScores + kScoreParts * kScoreTiles * kScoreTile;
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

// Where one thread's copies of an array's chunks come from.
template <class S>
struct Source {
  using In = typename S::In;
  static constexpr int kAtOnce = 16 / S::kBytes;
  static constexpr int kPieces = S::kColumns / kAtOnce;

  const Rows& rows;
  int row, column;
  const char* from;

  CLA_DEVICE bool in_pieces() const { return S::kAligned || rows.aligned; }

  CLA_DEVICE Source(const Rows& of, int64_t offset, int64_t first) : rows(of) {
    const int across = in_pieces() ? kPieces : S::kColumns;
    row = thread_index() / across;
    column = thread_index() % across * (in_pieces() ? kAtOnce : 1);
    from = rows.data + offset + (first + row) * rows.row + column * S::kBytes;
  }

  // Starts the copies of the next chunk, which has `count` rows; what lies beyond becomes zero.
  CLA_DEVICE void copy_chunk(int count, unsigned char* tile) {
    In* const to = reinterpret_cast<In*>(tile) + row * S::kPitch + column;
    if (in_pieces()) {
      constexpr int kStep = S::kThreads / kPieces;
#pragma unroll
      for (int i = 0; i < S::kChunk; i += kStep) {
        const bool wanted = row + i < count && (S::kAligned || column < rows.columns);
        cp_async<16>(to + i * S::kPitch, from + i * rows.row, wanted);
      }
    } else {
      constexpr int kStep = S::kThreads / S::kColumns;
#pragma unroll 4
      for (int i = 0; i < S::kChunk; i += kStep) {
        const bool wanted = row + i < count && column < rows.columns;
        to[i * S::kPitch] = wanted ? *reinterpret_cast<const In*>(from + i * rows.row) : In{};
      }
    }
    from += S::kChunk * rows.row;
  }
};

// All arrays of a block's scan.
template <class S>
struct Sources {
  Source<S> a, b, c, queries;
  const float *weights, *slopes;  // of this thread's row
  int step;                       // to the next row's

  CLA_DEVICE static int64_t offset(const Scans& s, const Rows& rows, int64_t head) {
    return head / s.heads_of_a_batch * rows.batch + head % s.heads_of_a_batch * rows.head;
  }
  CLA_DEVICE static const float* numbers(const Scans& s, const float* of, int64_t head, int64_t first) {
    const int64_t row = first + thread_index();
    return of == nullptr ? nullptr : of + head * s.length + (s.reverse ? s.length - 1 - row : row);
  }

  CLA_DEVICE Sources(const Scans& s, const Scan& scan, int64_t head, int64_t first)
      : a(scan.a, offset(s, scan.a, head), first),
        b(scan.b, offset(s, scan.b, head), first),
        c(scan.c, offset(s, scan.c, head), first),
        queries(scan.queries, offset(s, scan.queries, head), first),
        weights(numbers(s, scan.weights, head, first)),
        slopes(numbers(s, scan.slopes, head, first)),
        step(s.reverse ? -1 : 1) {}

  CLA_DEVICE void copy_numbers(const float*& from, int count, unsigned char* to) {
#pragma unroll
    for (int i = 0; i < S::kChunk; i += S::kThreads) {
      const int row = thread_index() + i;
      if (row >= S::kChunk) break;
      cp_async<4>(to + row * 4, from + i * step, row < count && from != nullptr);
    }
    if (from != nullptr) from += S::kChunk * step;
  }

  // What a launch for the sums alone does not read stays where it is.
  CLA_DEVICE void copy_chunk(int count, bool only_sums, unsigned char* stage) {
    if (count > 0) {
      if (!only_sums) a.copy_chunk(count, stage);
      b.copy_chunk(count, stage + S::kTile);
      c.copy_chunk(count, stage + 2 * S::kTile);
      if (S::kNormaliser == Normaliser::dq && !only_sums) queries.copy_chunk(count, stage + 3 * S::kTile);
      if (S::kStage > S::kWeights) copy_numbers(weights, count, stage + S::kWeights);
      if (S::kStage > S::kSlopes) copy_numbers(slopes, count, stage + S::kSlopes);
    }
    cp_async_commit();
  }
};

}  // namespace cla::cuda
