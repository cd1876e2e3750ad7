// The gradient of a matrix of weights: for each trial, the sum over all steps and sequences of what came back (dz, a row of
// the result for each column) times what the matrix read (a column of the result for each).
//
// Torch's own products take several times as long on such shapes: a hundred numbers or two on each side, and a sum over all
// of 10,000s. Operands are taken apart as in product.cuh. A block takes WARPS times 16 rows of the result, 8 TILES columns,
// and one of several ranges of the sum, whose results are added up afterwards, always in the same order.
#pragma once

#include "kernels/cuh/device.cuh"

constexpr int P = PARTS, W = WARPS, N = TILES;
constexpr int kThreads = 32 * W;
constexpr int kDepth = 16;                                   // of the sum, at once
constexpr int kRows = 16 * W, kColumns = 8 * N;              // of the result
// In a buffer, the four quarters of an operand's 16 numbers lie apart, so that no two lanes meet in a bank (in words):
// of A by pairs of rows q and q + 8, as a lane needs them, of B by columns.
constexpr int kRowStride = 2 * kRows + 8, kColumnStride = 2 * ((kColumns + 15) / 16 * 16 + 4);
constexpr int kA = 4 * kRowStride, kB = 4 * kColumnStride;   // words of one part of an operand
constexpr int kBuffer = P * (kA + kB);
constexpr int kPerThread = (4 * (kRows + kColumns) + kThreads - 1) / kThreads;  // quarters of columns of both operands

struct Arguments {
  long E, depth;       // trials, and numbers that are added up
  long rows, columns;  // of the result
  const float* a;      // [E, depth, rows]
  long a_trial, a_step;
  const float* b;      // [E, depth - before, columns]: what was read from number `before` on
  long b_trial, b_step;
  const float* first;  // [E, before, columns]: what was read until then
  long first_trial, first_step, before;
  long per_range;      // a multiple of kDepth
  float* result;       // [ranges, E, rows, columns]
};

// A thread takes four numbers of a column of an operand, one below the other, apart; always the same place of a chunk.
// Columns that do not exist are read as the last one: what they give is not written.
struct Quarter {
  const float *at, *first;  // the first of the four in the chunk that comes next, and among those before
  int step, first_step, to;  // from one number to the next, and where it goes in a buffer
  int quarter;
  bool is_a;
  float value[4];

  METHOD void begin(const Arguments& args, long e, int n, long from, int row0, int column0) {
    is_a = n < 4 * kRows;
    const int place = is_a ? n % kRows : (n - 4 * kRows) % kColumns;
    quarter = is_a ? n / kRows : (n - 4 * kRows) / kColumns % 4;
    const long last = (is_a ? args.rows : args.columns) - 1, own = (is_a ? row0 : column0) + place, index = own < last ? own : last;
    to = is_a ? quarter * kRowStride + place / 16 * 32 + place % 8 * 4 + place / 8 % 2 : P * kA + quarter * kColumnStride + 2 * place;
    if (n >= 4 * (kRows + kColumns)) to = -1;
    step = (int)(is_a ? args.a_step : args.b_step), first_step = (int)args.first_step;
    at = (is_a ? args.a + e * args.a_trial : args.b + e * args.b_trial - args.before * args.b_step) + (from + 4 * quarter) * step + index;
    first = args.first + e * args.first_trial + index;
  }
  // A chunk that is whole and lies behind `before`.
  METHOD void load() {
    const float* next = at;
#pragma unroll
    for (int k = 0; k < 4; k++, next += step) value[k] = *next;
    at += kDepth * step;
  }
  METHOD void load_carefully(const Arguments& args, long from, long end) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const long number = from + 4 * quarter + k;
      value[k] = 0;
      if (number < end) value[k] = is_a || number >= args.before ? at[k * step] : first[number * first_step];
    }
    at += kDepth * step;
  }
  METHOD void store(unsigned* buffer) {
    if (to < 0) return;
#pragma unroll
    for (int p = 0; p < P; p++) {
      const unsigned low = rounded(value[0], value[1]), high = rounded(value[2], value[3]);
      value[0] -= as_float(low << 16), value[1] -= as_float(low & 0xffff0000u);
      value[2] -= as_float(high << 16), value[3] -= as_float(high & 0xffff0000u);
      if (is_a) buffer[to + p * kA] = low, buffer[to + p * kA + 2] = high;
      else *(uint2*)(buffer + to + p * kB) = {low, high};
    }
  }
};

KERNEL(kThreads) outer(const GRID_CONSTANT Arguments args) {
  unsigned* buffers = (unsigned*)shared_memory();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  const long e = blockIdx.z, range = blockIdx.x;
  const int column_blocks = (int)((args.columns + kColumns - 1) / kColumns);
  const int row0 = blockIdx.y / column_blocks * kRows, column0 = blockIdx.y % column_blocks * kColumns;
  const long begin = range * args.per_range, last = begin + args.per_range, end = last < args.depth ? last : args.depth;
  float sum[N][4];
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int r = 0; r < 4; r++) sum[n][r] = 0;
  Quarter next[kPerThread];
  auto load = [&](long from) {
    const bool plain = from >= args.before && from + kDepth <= end;
#pragma unroll
    for (int n = 0; n < kPerThread; n++) {
      if (plain) next[n].load();
      else next[n].load_carefully(args, from, end);
    }
  };
#pragma unroll
  for (int n = 0; n < kPerThread; n++) next[n].begin(args, e, threadIdx.x + n * kThreads, begin, row0, column0);
  load(begin);
  int which = 0;
  for (long at = begin; at < end; at += kDepth, which ^= 1) {
    unsigned* buffer = buffers + which * kBuffer;
#pragma unroll
    for (int n = 0; n < kPerThread; n++) next[n].store(buffer);
    sync_block();
    if (at + kDepth < end) load(at + kDepth);
    uint4 a[P];
#pragma unroll
    for (int p = 0; p < P; p++) a[p] = *(const uint4*)(buffer + p * kA + c * kRowStride + warp * 32 + q * 4);
#pragma unroll
    for (int n = 0; n < N; n++) {
      uint2 b[P];
      float tile[4] = {0, 0, 0, 0};
#pragma unroll
      for (int p = 0; p < P; p++) b[p] = *(const uint2*)(buffer + P * kA + p * kB + c * kColumnStride + 2 * (n * 8 + q));
#pragma unroll
      for (int i = P - 1; i >= 0; i--)
#pragma unroll
        for (int j = P - 1 - i; j >= 0; j--) multiply_add(P == 3 ? tile : sum[n], a[i], b[j]);
      if (P == 3)  // tensor cores cut off what does not fit into a sum: a long one would shrink
#pragma unroll
        for (int r = 0; r < 4; r++) sum[n][r] += tile[r];
    }
  }
  float* to = args.result + (range * args.E + e) * args.rows * args.columns;
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const long row = row0 + warp * 16 + q + r / 2 * 8, column = column0 + n * 8 + 2 * c + r % 2;
      if (row < args.rows && column < args.columns) to[row * args.columns + column] = sum[n][r];
    }
}
