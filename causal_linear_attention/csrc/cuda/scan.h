// What one launch of a kernel is given.
//
// With S the sum of k^T v over the rows before a chunk of rows and R that of q^T grad_out over those after it,
// the three jobs are scans, each with its own A, B, C and order:
//
//     forward  out = P C + A S    P = A B^T, j <= i   (A, B, C) = (q, k, v)
//     dq       dq = P C + A S^T   P = A B^T, j <= i   (A, B, C) = (grad_out, v, k)
//     dkdv     dk = P C + A R^T   P = A B^T, j >= i   (A, B, C) = (v, grad_out, q)
//              dv = P C + A R     P = A B^T, j >= i   (A, B, C) = (k, q, grad_out)
//
// Heads of more than 128 columns have jobs dk and dv in place of dkdv (see backward_wide.cuh).
//
// With a normaliser, forward divides out[i] by q[i] . z[i] + eps, z summing k, and writes the inverse. dq
// multiplies its rows by these inverses, then adds slope[i] z[i], where slope[i] = -(q[i] . dq[i]) inverse[i].
// dkdv multiplies every product with row j of grad_out by inverse[j]; dk also adds slope[j] q[j].
//
// With decays (see decays.cuh) the terms of P, the rows of A S and what is added to S are multiplied by those between.
#pragma once

#include <cstdint>

#include "../problem.h"

namespace cla::cuda {

enum class Job : int { forward, dq, dkdv, dk, dv };

enum Tile : int { kK, kV, kQ, kGrad, kInputs };  // the inputs, in the order of a stage

// The rows of all heads, the first at data + batch and head's offsets.
struct Rows {
  char* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides in bytes
  int columns = 0;
  bool aligned = false;  // every row starts and ends at 16 bytes
  int group = 1;         // see Array
};

// Number (x, y) of head h's state at data + h * head + x * own_step + y * other_step, x among the columns that the
// warps share out. Number d of the vector beside it, which a normaliser keeps, at data + h * head + vector +
// d * vector_step. Heads h group to h group + group - 1, counted over all sequences, share it; `once`: only the first of them
// has it.
struct State {
  float* data = nullptr;
  int64_t head = 0;
  int own = 0, own_step = 0, other = 0, other_step = 0;
  int vector = 0, vector_step = 0, vector_size = 0;
  int group = 1;
  bool once = false;
};

struct Launch {
  Rows inputs[kInputs];
  int heads = 0, heads_of_a_batch = 1, length = 0;  // heads of all batch rows or sequences
  const int* bounds = nullptr;  // packed: sequence x has the rows from bounds[x] up to bounds[x + 1] of the one batch row
  State initial;             // of forward
  State kept;                // see kept_states in attention.h; one head's lie one after the other
  int kept_rows = 0, kept_size = 0;
  int parts = 1;  // blocks among which a head's outputs are shared out; `heads` counts each
  float* inverse = nullptr;  // (heads, length)
  Rows decay;                // one float32 a row; null unless the kernel is one with decays
  // Filled in by `plan` and `launch`.
  int segments = 1, segment_rows = 0, stages = 1;
  // If there are several segments (see lookback.cuh): how many have begun, then for each head and segment what it
  // announced, and (heads, segments, 2, registers of a block) sums and totals.
  int* tickets = nullptr;
  float* sums = nullptr;
};

struct ForwardLaunch : Launch {
  Rows out;
  State final;
  float eps = 0.0f;
  float scale = 1.0f;  // of the outputs without a normaliser
};

struct BackwardLaunch : Launch {
  Rows grad_q, grad_k, grad_v;
  State grad_final, grad_initial;
  float* slopes = nullptr;  // (heads, length)
  float* grad_decay = nullptr;  // (heads, length), with decays; without a normaliser q . dq lies there first
  float eps = 0.0f;
  int depth_parts = 1;      // of a wide head, those that the columns of dq take, and of dk
};

}  // namespace cla::cuda
