// The product of stepwise.cuh, z = A u for all sequences of every trial, where each warp multiplies for itself: A has TALL x 32
// rows and DEPTH x 16 columns, packed as in gemm.cuh.
//
// The tiles of 32 rows of all trials stand in one line, and a block takes W of them, one a warp: of one trial, or of two.
// Weights and u come to shared memory in stages, several of them ahead. A lane's share of a tile of u, 8 sequences and 16
// places, is four places of one sequence, in parts, and the shares of the 32 lanes follow each other.
#pragma once

constexpr int W = BLOCK_ROW_TILES;
constexpr int kDepthTile = 16, kLaneBytes = 8 * P;  // bytes of a lane's share
constexpr int kKTilesPerStage = K_TILES_PER_STAGE;  // tiles along the depth in a stage
constexpr int kWeights = W * 2 * P * 512, kU = NT * 32 * kLaneBytes;  // bytes of such a tile: of all warps, of a trial
constexpr int kStage = kKTilesPerStage * (kWeights + 2 * kU);
constexpr int kInterleave = P == 3 ? 2 : 4;  // tiles that take turns, because a sum waits for its last product
constexpr int kGemmThreads = 32 * W;

// A part of four units of sequence b, from place `first` of the depth on, as the product reads it.
DEVICE char* split_of_u(const StepArguments& given, int product, int depth, long e, int first, int b, int part) {
  const long tile = (e * (depth / kDepthTile) + first / kDepthTile) * given.sequence_tiles + b / 8;
  return given.u[product] + (tile * 32 + b % 8 * 4 + first % kDepthTile / 4) * kLaneBytes + 8 * part;
}

constexpr int kRowTile = 16, kPackedTile = P * 512;  // as they are packed
DEVICE constexpr int packed_tiles(int tall, int depth) { return 2 * tall * depth; }
template <class Weight> DEVICE void pack_tile(int lane, char* to, Weight weight) { pack_splits(lane, (uint4*)to, weight); }

// sum += a b for 32 rows and all sequences, one tile along the depth. `a` and `b` are this lane's.
DEVICE void mma_tile(const char* from_a, const char* from_b, float (&sum)[2][NT][4]) {
  uint4 a[2][P];
#pragma unroll
  for (int n = 0; n < 2 * P; n++) a[n / P][n % P] = *(const uint4*)(from_a + n * 512);
#pragma unroll
  for (int first = 0; first < NT; first += kInterleave) {
    constexpr int kTemporaries = P == 3 ? 2 * kInterleave : 1;
    uint2 b[kInterleave][P];
    float tile[kTemporaries][4];  // tensor cores cut off what does not fit into a sum: a long one of large products would shrink
#pragma unroll
    for (int n = 0; n < kInterleave && first + n < NT; n++) {
      const char* share = from_b + (first + n) * 32 * kLaneBytes;
      if (P == 2) {
        const uint4 both = *(const uint4*)share;
        b[n][0] = {both.x, both.y}, b[n][P - 1] = {both.z, both.w};
      } else {
#pragma unroll
        for (int p = 0; p < P; p++) b[n][p] = *(const uint2*)(share + 8 * p);
      }
    }
#pragma unroll
    for (int n = 0; n < kTemporaries; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) tile[n][r] = 0;
#pragma unroll
    for (int i = P - 1; i >= 0; i--)
#pragma unroll
      for (int j = P - 1 - i; j >= 0; j--)
#pragma unroll
        for (int n = 0; n < kInterleave && first + n < NT; n++)
#pragma unroll
          for (int m = 0; m < 2; m++)
            mma(P == 3 ? tile[(2 * n + m) % kTemporaries] : sum[m][first + n], a[m][i], b[n][j]);
    if (P == 3)
#pragma unroll
      for (int n = 0; n < kInterleave && first + n < NT; n++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
          for (int r = 0; r < 4; r++) sum[m][first + n][r] += tile[(2 * n + m) % kTemporaries][r];
  }
}

template <int ROW_TILES, int K_TILES> DEVICE void gemm(const StepArguments& given, const char* weights, const char* u) {
  static_assert(W <= ROW_TILES + 1, "a block meets two trials at most");
  char* memory = shared_memory();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  const long all = given.args.E * ROW_TILES, first = (long)blockIdx.x * W, own = first + warp;
  const long last = (first + W < all ? first + W : all) - 1;
  const long e = own / ROW_TILES, first_e = first / ROW_TILES;
  const bool works = own < all;

  // What this thread copies of every tile: the weights of its warp, and some of the 16 bytes of u.
  constexpr int kChunks = kU / 16, kCopies = (2 * kChunks + 32 * W - 1) / (32 * W);
  const char* from_weights = weights + (own * (2 * K_TILES * P * 32) + lane) * 16;
  const long from_tile = given.sequence_tiles * (32 * kLaneBytes);  // to the next one of u
  const char* from_u[kCopies];
#pragma unroll
  for (int n = 0; n < kCopies; n++) {
    const int chunk = threadIdx.x + n * 32 * W;
    from_u[n] = u + ((first_e + chunk / kChunks) * K_TILES * given.sequence_tiles + blockIdx.y * NT) * (32 * kLaneBytes) + chunk % kChunks * 16;
    if (chunk >= (last / ROW_TILES - first_e + 1) * kChunks) from_u[n] = nullptr;
  }
  auto load = [&](int stage) {
    char* to = memory + stage % STAGES * kStage;
#pragma unroll
    for (int k = 0; k < kKTilesPerStage; k++, to += kWeights + 2 * kU) {
      if (K_TILES % kKTilesPerStage && stage * kKTilesPerStage + k >= K_TILES) break;
      if (works)
#pragma unroll
        for (int n = 0; n < 2 * P; n++)
          cp_async(to + (warp * 2 * P + n) * 512 + lane * 16, from_weights + (n / P * K_TILES * P + k * P + n % P) * 512);
#pragma unroll
      for (int n = 0; n < kCopies; n++)
        if (from_u[n]) cp_async(to + kWeights + (threadIdx.x + n * 32 * W) * 16, from_u[n] + k * from_tile);
    }
    from_weights += kKTilesPerStage * P * 512;
#pragma unroll
    for (int n = 0; n < kCopies; n++) if (from_u[n]) from_u[n] += kKTilesPerStage * from_tile;
  };

  float sum[2][NT][4];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) sum[m][n][r] = 0;
  constexpr int kStages = (K_TILES + kKTilesPerStage - 1) / kKTilesPerStage;
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) {
    if (stage < kStages) load(stage);
    cp_async_commit();
  }
  for (int stage = 0; stage < kStages; stage++) {
    cp_async_wait<STAGES - 2>();
    sync_block();
    if (stage + STAGES - 1 < kStages) load(stage + STAGES - 1);
    cp_async_commit();
    const char* from = memory + stage % STAGES * kStage;
#pragma unroll
    for (int k = 0; k < kKTilesPerStage; k++, from += kWeights + 2 * kU) {
      if (K_TILES % kKTilesPerStage && stage * kKTilesPerStage + k >= K_TILES) break;
      mma_tile(from + warp * 2 * P * 512 + lane * 16, from + kWeights + (works ? e - first_e : 0) * kU + lane * kLaneBytes, sum);
    }
  }

  // By way of shared memory, so that what follows each other is written at once.
  constexpr int kRow = 36;
  sync_block();
  float* transposed = (float*)memory + warp * (NT * 8 * kRow);
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) transposed[(n * 8 + 2 * c + r % 2) * kRow + m * 16 + q + r / 2 * 8] = sum[m][n][r];
  sync_warp();
  const int begin = blockIdx.y * NT * 8, rows = given.args.B - begin < NT * 8 ? (int)given.args.B - begin : NT * 8;
  for (int n = lane; works && n < rows * 8; n += 32)
    store(given.z + (e * given.args.B + begin + n / 8) * Z_STRIDE + own % ROW_TILES * 32 + n % 8 * 4,
          ::load(transposed + n / 8 * kRow + n % 8 * 4));
}
