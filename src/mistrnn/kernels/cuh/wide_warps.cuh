// The product of wide.cuh, z = A u for all sequences of every trial, where each warp multiplies for itself: A has TALL x 32
// rows and DEPTH x 16 columns, packed as in product.cuh.
//
// The tiles of 32 rows of all trials stand in one line, and a block takes W of them, one a warp: of one trial, or of two.
// Weights and u come to shared memory in stages, several of them ahead. A lane's share of a tile of u, 8 sequences and 16
// places, is four places of one sequence, in parts, and the shares of the 32 lanes follow each other.
#pragma once

constexpr int W = WIDTH;
constexpr int kDepthTile = 16, kShare = 8 * P;  // bytes of a lane's share
constexpr int kAhead = AHEAD;  // tiles along the depth in a stage
constexpr int kWeights = W * 2 * P * 512, kU = NT * 32 * kShare;  // bytes of such a tile: of all warps, of a trial
constexpr int kStage = kAhead * (kWeights + 2 * kU);
constexpr int kTurns = P == 3 ? 2 : 4;  // tiles that take turns, because a sum waits for its last product
constexpr int kProductThreads = 32 * W;

// A part of four units of sequence b, from place `first` of the depth on, as the product reads it.
DEVICE char* part_of_u(const Call& call, int product, int depth, long e, int first, int b, int part) {
  const long tile = (e * (depth / kDepthTile) + first / kDepthTile) * call.tiles + b / 8;
  return call.u[product] + (tile * 32 + b % 8 * 4 + first % kDepthTile / 4) * kShare + 8 * part;
}

constexpr int kRowTile = 16, kPackedTile = P * 512;  // as they are packed
DEVICE constexpr int packed_tiles(int tall, int depth) { return 2 * tall * depth; }
template <class Weight> DEVICE void pack_tile(int lane, char* to, Weight weight) { pack_parts(lane, (uint4*)to, weight); }

// sum += a b for 32 rows and all sequences, one tile along the depth. `a` and `b` are this lane's.
DEVICE void multiply_tile(const char* from_a, const char* from_b, float (&sum)[2][NT][4]) {
  uint4 a[2][P];
#pragma unroll
  for (int n = 0; n < 2 * P; n++) a[n / P][n % P] = *(const uint4*)(from_a + n * 512);
#pragma unroll
  for (int first = 0; first < NT; first += kTurns) {
    constexpr int kApart = P == 3 ? 2 * kTurns : 1;
    uint2 b[kTurns][P];
    float tile[kApart][4];  // tensor cores cut off what does not fit into a sum: a long one of large products would shrink
#pragma unroll
    for (int n = 0; n < kTurns && first + n < NT; n++) {
      const char* share = from_b + (first + n) * 32 * kShare;
      if (P == 2) {
        const uint4 both = *(const uint4*)share;
        b[n][0] = {both.x, both.y}, b[n][P - 1] = {both.z, both.w};
      } else {
#pragma unroll
        for (int p = 0; p < P; p++) b[n][p] = *(const uint2*)(share + 8 * p);
      }
    }
#pragma unroll
    for (int n = 0; n < kApart; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) tile[n][r] = 0;
#pragma unroll
    for (int i = P - 1; i >= 0; i--)
#pragma unroll
      for (int j = P - 1 - i; j >= 0; j--)
#pragma unroll
        for (int n = 0; n < kTurns && first + n < NT; n++)
#pragma unroll
          for (int m = 0; m < 2; m++)
            multiply_add(P == 3 ? tile[(2 * n + m) % kApart] : sum[m][first + n], a[m][i], b[n][j]);
    if (P == 3)
#pragma unroll
      for (int n = 0; n < kTurns && first + n < NT; n++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
          for (int r = 0; r < 4; r++) sum[m][first + n][r] += tile[(2 * n + m) % kApart][r];
  }
}

template <int TALL, int DEPTH> DEVICE void multiply(const Call& call, const char* weights, const char* u) {
  static_assert(W <= TALL + 1, "a block meets two trials at most");
  char* memory = shared_memory();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  const long all = call.args.E * TALL, first = (long)blockIdx.x * W, own = first + warp;
  const long last = (first + W < all ? first + W : all) - 1;
  const long e = own / TALL, first_e = first / TALL;
  const bool works = own < all;

  // What this thread copies of every tile: the weights of its warp, and some of the 16 bytes of u.
  constexpr int kChunks = kU / 16, kCopies = (2 * kChunks + 32 * W - 1) / (32 * W);
  const char* from_weights = weights + (own * (2 * DEPTH * P * 32) + lane) * 16;
  const long from_tile = call.tiles * (32 * kShare);  // to the next one of u
  const char* from_u[kCopies];
#pragma unroll
  for (int n = 0; n < kCopies; n++) {
    const int chunk = threadIdx.x + n * 32 * W;
    from_u[n] = u + ((first_e + chunk / kChunks) * DEPTH * call.tiles + blockIdx.y * NT) * (32 * kShare) + chunk % kChunks * 16;
    if (chunk >= (last / TALL - first_e + 1) * kChunks) from_u[n] = nullptr;
  }
  auto load = [&](int stage) {
    char* to = memory + stage % STAGES * kStage;
#pragma unroll
    for (int k = 0; k < kAhead; k++, to += kWeights + 2 * kU) {
      if (DEPTH % kAhead && stage * kAhead + k >= DEPTH) break;
      if (works)
#pragma unroll
        for (int n = 0; n < 2 * P; n++)
          copy_ahead(to + (warp * 2 * P + n) * 512 + lane * 16, from_weights + (n / P * DEPTH * P + k * P + n % P) * 512);
#pragma unroll
      for (int n = 0; n < kCopies; n++)
        if (from_u[n]) copy_ahead(to + kWeights + (threadIdx.x + n * 32 * W) * 16, from_u[n] + k * from_tile);
    }
    from_weights += kAhead * P * 512;
#pragma unroll
    for (int n = 0; n < kCopies; n++) if (from_u[n]) from_u[n] += kAhead * from_tile;
  };

  float sum[2][NT][4];
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) sum[m][n][r] = 0;
  constexpr int kStages = (DEPTH + kAhead - 1) / kAhead;
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) {
    if (stage < kStages) load(stage);
    end_group();
  }
  for (int stage = 0; stage < kStages; stage++) {
    wait_for_groups<STAGES - 2>();
    sync_block();
    if (stage + STAGES - 1 < kStages) load(stage + STAGES - 1);
    end_group();
    const char* from = memory + stage % STAGES * kStage;
#pragma unroll
    for (int k = 0; k < kAhead; k++, from += kWeights + 2 * kU) {
      if (DEPTH % kAhead && stage * kAhead + k >= DEPTH) break;
      multiply_tile(from + warp * 2 * P * 512 + lane * 16, from + kWeights + (works ? e - first_e : 0) * kU + lane * kShare, sum);
    }
  }

  // By way of shared memory, so that what follows each other is written at once.
  constexpr int kRow = 36;
  sync_block();
  float* turned = (float*)memory + warp * (NT * 8 * kRow);
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) turned[(n * 8 + 2 * c + r % 2) * kRow + m * 16 + q + r / 2 * 8] = sum[m][n][r];
  sync_warp();
  const int begin = blockIdx.y * NT * 8, rows = call.args.B - begin < NT * 8 ? (int)call.args.B - begin : NT * 8;
  for (int n = lane; works && n < rows * 8; n += 32)
    store(call.z + (e * call.args.B + begin + n / 8) * Z_STRIDE + own % TALL * 32 + n % 8 * 4,
          ::load(turned + n / 8 * kRow + n % 8 * 4));
}
