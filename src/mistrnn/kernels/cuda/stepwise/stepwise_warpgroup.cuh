// The product of stepwise.cuh, z = A u for all sequences of every trial, where four warps multiply as one: on GPUs of the
// generation of the H100. A has TALL x 64 rows and DEPTH x 32 columns.
//
// A group of four warps has 64 rows of A. The tiles of 64 rows of all trials stand in one line, and a block takes G of them:
// of one trial, or of two. One more warp copies weights and u to a ring of stages in shared memory, 32 places along the depth
// at a time.
//
// In memory as in shared memory, tiles of A and u lie as warpgroup.cuh has them.
#pragma once

#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/common/pipeline.cuh"

constexpr int G = BLOCK_ROW_TILES;
constexpr int kTile = kRowTile * kRowBytes, kWeights = P * kTile;      // bytes of a tile of A: a part, all parts
constexpr int kUPart = NT * 8 * kRowBytes, kU = P * kUPart;            // ... of u, for NT x 8 sequences of a trial
constexpr int kStage = G * kWeights + TRIALS_PER_BLOCK * kU;
constexpr int kGemmThreads = 32 * (4 * G + 1);

// A part of four units of sequence b, from place `first` of the depth on, as the product reads it.
DEVICE char* split_of_u(const StepArguments& given, int product, int depth, long e, int first, int b, int part) {
  const long tile = (e * (depth / kDepthTile) + first / kDepthTile) * (given.sequence_tiles / NT) + b / (8 * NT);
  return given.u[product] + tile * kU + part * kUPart + byte_of(b % (8 * NT), first % kDepthTile);
}

// Lay out a tile of A. Its rows are those that a thread gets side by side: of the rows of a warp, q and q + 8.
constexpr int kPackedTile = kWeights;
DEVICE constexpr int packed_tiles(int tall, int depth) { return tall * depth; }
template <class Weight> DEVICE void pack_tile(int lane, char* to, Weight weight) {
  for (int n = lane; n < kRowTile * 4; n += 32) {
    const int row = n % kRowTile, place = n / kRowTile * 8;
    float left[8];
#pragma unroll
    for (int k = 0; k < 8; k++) left[k] = weight(row / 16 * 16 + row % 8 * 2 + row % 16 / 8, place + k);
#pragma unroll
    for (int p = 0; p < P; p++) *(uint4*)(to + p * kTile + byte_of(row, place)) = next_split(left);
  }
}

template <int ROW_TILES, int K_TILES> DEVICE void gemm(const StepArguments& given, const char* weights, const char* u) {
  static_assert(G <= ROW_TILES + 1 && (TRIALS_PER_BLOCK > 1 || ROW_TILES % G == 0), "a block meets two trials at most");
  char* memory = shared_memory();
  Mbarrier *full = (Mbarrier*)(memory + STAGES * kStage), *empty = full + STAGES;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp / 4;
  const long all = given.args.E * ROW_TILES, first = (long)blockIdx.x * G, first_e = first / ROW_TILES;
  const int groups = all - first < G ? (int)(all - first) : G;  // that have something to do
  if (threadIdx.x == 0)
    for (int n = 0; n < STAGES; n++) mbarrier_init(full + n, 1), mbarrier_init(empty + n, 4 * groups);
  sync_block();
  PipelineState pipe;

  if (group == G) {
    const int trials = (int)((first + groups - 1) / ROW_TILES - first_e) + 1;
    for (int k = 0; k < K_TILES; k++, pipe.advance()) {
      mbarrier_wait(empty + pipe.stage, pipe.parity ^ 1);  // the first time it is
      warp_arrive(lane, full + pipe.stage, groups * kWeights + trials * kU);
      if (lane > 0) continue;
      char* to = memory + pipe.stage * kStage;
      for (int n = 0; n < groups; n++)
        cp_async_bulk_evict_first(to + n * kWeights, weights + ((first + n) * K_TILES + k) * kWeights, kWeights, full + pipe.stage);
      for (int n = 0; n < trials; n++)
        cp_async_bulk(to + G * kWeights + n * kU, u + (((first_e + n) * K_TILES + k) * gridDim.y + blockIdx.y) * kU, kU, full + pipe.stage);
    }
    return;
  }
  if (group >= groups) return;

  const long own = first + group, e = own / ROW_TILES;
  float sum[NT][4] = {};
  for (int k = 0, last = 0; k < K_TILES; k++, last = pipe.stage, pipe.advance()) {
    mbarrier_wait(full + pipe.stage, pipe.parity);
    const char* a = memory + pipe.stage * kStage + group * kWeights;
    const char* b = memory + pipe.stage * kStage + G * kWeights + (e - first_e) * kU;
    wgmma_tile(sum, a, kTile, b, kUPart);
    wgmma_wait<1>();
    if (k > 0) warp_arrive(lane, empty + last);
  }
  wgmma_wait<0>();

  const int unit = (int)(own % ROW_TILES) * kRowTile + warp % 4 * 16 + lane / 4 * 2;
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      make_opaque(sum[n][r]), make_opaque(sum[n][r + 2]);  // they were under way until now
      const int b = (blockIdx.y * NT + n) * 8 + lane % 4 * 2 + r;
      if (b < given.args.B) *(float2*)(given.z + (e * given.args.B + b) * Z_STRIDE + unit) = {sum[n][r], sum[n][r + 2]};
    }
}
