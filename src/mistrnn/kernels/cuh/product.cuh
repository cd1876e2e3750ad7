// The product of a step, z = A u, on the tensor cores: A holds weights and stays, u is what the block's sequences read.
//
// A float32 operand is taken apart into PARTS bfloat16 numbers that add up to it (two keep 16 bits of it, three keep all
// 24), and the product is the sum of the products of parts that count: 1, 3 or 6 of them. Units stand on the rows of a tile
// and sequences on its columns.
//
// A tile of A takes each lane 16 bytes per part, packed beforehand in the order in which they are needed (`pack`). They lie
// in registers as far as there are any, then in shared memory, then in the second-level cache.
//
// Without PARTS the product is computed one number at a time in the type of the run, from the weights as they are.
#pragma once

#include "kernels/cuh/block.cuh"

// MW x KS warps share a product: each takes MB tiles on top of each other (every MW-th) and the KW tiles along k of one
// of KS ranges; the sums over the ranges are left apart in z. Of the KW, the first IN_REGISTERS are there, then come
// IN_SHARED, and the rest is read from global memory each time.
template <int MW_, int KS_, int MB_, int KW_, int IN_REGISTERS, int IN_SHARED> struct Shape {
  static constexpr int MW = MW_, KS = KS_, MB = MB_, KW = KW_, kRegisters = IN_REGISTERS, kShared = IN_SHARED;
  static constexpr int kTiles = MW * MB * KS * KW;                 // of the whole product
  static constexpr int kHeld = IN_REGISTERS * MB * P;              // uint4 of a lane
  static constexpr int kSharedTiles = MW * KS * IN_SHARED * MB;
};

typedef Shape<SHAPE_0> Shape0;
typedef Shape<SHAPE_1> Shape1;
constexpr int kTiles = (Shape0::kTiles + (PHASES > 1 ? Shape1::kTiles : 0));  // of a block of the cluster

// Where tile (m, k) of a product begins among the packed weights.
template <class S> DEVICE long tile_at(int m, int k) { return ((long)m * (S::KS * S::KW) + k) * P * 32; }

template <class S> struct Weights {
  uint4 held[S::kHeld > 0 ? S::kHeld : 1];
  const uint4* global;
  uint4* shared;

  // Take what stays in registers and in shared memory; a warp copies just what it will read itself.
  METHOD void begin(const uint4* packed, uint4* room) {
    global = packed, shared = room;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (P == 0 || warp >= S::MW * S::KS) return;
    const int m = warp % S::MW, first = warp / S::MW * S::KW;
#pragma unroll
    for (int k = 0; k < S::kRegisters; k++)
#pragma unroll
      for (int n = 0; n < S::MB; n++)
#pragma unroll
        for (int p = 0; p < P; p++)
          held[(k * S::MB + n) * P + p] = load_weights(packed + tile_at<S>(m + n * S::MW, first + k) + p * 32 + lane);
    for (int k = 0; k < S::kShared; k++)
      for (int n = 0; n < S::MB; n++)
        for (int p = 0; p < P; p++)
          shared[(((warp * S::kShared + k) * S::MB + n) * P + p) * 32 + lane] =
              load_weights(packed + tile_at<S>(m + n * S::MW, first + S::kRegisters + k) + p * 32 + lane);
    sync_warp();
  }
};

#if PARTS > 0

// Independent sums: a tensor core takes long to answer, so that one sum after the other would wait.
template <class S> struct Sums {
  static constexpr int kTerms = P == 1 ? 1 : 3, kLanes = S::MB * NT == 1 ? 2 : 1;
  float value[S::MB][NT][kLanes][kTerms][4];

  METHOD void zero() {
#pragma unroll
    for (int m = 0; m < S::MB; m++)
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int l = 0; l < kLanes; l++)
#pragma unroll
          for (int t = 0; t < kTerms; t++)
#pragma unroll
            for (int r = 0; r < 4; r++) value[m][n][l][t][r] = 0;
  }

  // Products of parts i and j, the smallest apart from the large ones; 2^-24 of the product and less is left out.
  template <int LANE> METHOD void add(int m, int n, const uint4* a, const uint2* b) {
    float(&sums)[kTerms][4] = value[m][n][LANE % kLanes];
#pragma unroll
    for (int i = P - 1; i >= 0; i--)
#pragma unroll
      for (int j = P - 1 - i; j >= (P == 3 && i == 0 ? 1 : 0); j--)
        multiply_add(sums[P == 1 ? 0 : i + j == 0 ? 0 : (P == 2 ? 1 + i : i + j)], a[i], b[j]);
    if (P == 3) {  // tensor cores cut off what does not fit into a sum: a long one would shrink
      float tile[4] = {0, 0, 0, 0};
      multiply_add(tile, a[0], b[0]);
#pragma unroll
      for (int r = 0; r < 4; r++) sums[0][r] += tile[r];
    }
  }

  METHOD float total(int m, int n, int r) const {
    float sum = value[m][n][0][kTerms - 1][r];
#pragma unroll
    for (int t = kTerms - 1; t >= 0; t--)
#pragma unroll
      for (int l = t == kTerms - 1 ? 1 : 0; l < kLanes; l++) sum += value[m][n][l][t][r];
    return sum;
  }
};

template <class S> DEVICE void product(const Weights<S>& weights, const char* u, Real* z) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  if (warp >= S::MW * S::KS) return;
  const int m0 = warp % S::MW, range = warp / S::MW;
  const char* read = u + q * kStride + (range * S::KW * 4 + c) * (8 * P);
  Sums<S> sums;
  sums.zero();

  auto fetch = [&](int k, uint2(&b)[NT][P]) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
      const char* from = read + n * 8 * kStride + k * (32 * P);
      if (P == 2) {
        const uint4 both = *(const uint4*)from;
        b[n][0] = {both.x, both.y}, b[n][P - 1] = {both.z, both.w};
      } else {
#pragma unroll
        for (int p = 0; p < P; p++) b[n][p] = ((const uint2*)from)[p];
      }
    }
  };
#pragma unroll
  for (int k = 0; k < S::kRegisters; k++) {
    uint2 b[NT][P];
    fetch(k, b);
#pragma unroll
    for (int m = 0; m < S::MB; m++)
#pragma unroll
      for (int n = 0; n < NT; n++) {
        if (k % 2) sums.template add<1>(m, n, weights.held + (k * S::MB + m) * P, b[n]);
        else sums.template add<0>(m, n, weights.held + (k * S::MB + m) * P, b[n]);
      }
  }
  auto add_from = [&](const uint4* from, int stride, int k) {  // stride: from one of the MB tiles to the next
    uint2 b[NT][P];
    fetch(k, b);
#pragma unroll
    for (int m = 0; m < S::MB; m++) {
      uint4 a[P];
#pragma unroll
      for (int p = 0; p < P; p++) a[p] = from[m * stride + p * 32];
#pragma unroll
      for (int n = 0; n < NT; n++) sums.template add<0>(m, n, a, b[n]);
    }
  };
  const uint4* near = weights.shared + warp * S::kShared * S::MB * P * 32 + lane;
#pragma unroll 4
  for (int k = 0; k < S::kShared; k++) add_from(near + k * (S::MB * P * 32), P * 32, S::kRegisters + k);
  const uint4* far = weights.global + tile_at<S>(m0, range * S::KW + S::kRegisters + S::kShared) + lane;
  constexpr int kFar = S::KW - S::kRegisters - S::kShared;
#pragma unroll 4
  for (int k = 0; k < kFar; k++)
    add_from(far + k * (P * 32), (int)tile_at<S>(S::MW, 0), S::kRegisters + S::kShared + k);

#pragma unroll
  for (int m = 0; m < S::MB; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int row = (m0 + m * S::MW) * 16 + q + r / 2 * 8, column = n * 8 + 2 * c + r % 2;
        if (NT * 8 == R || column < R) z[(range * R + column) * kZStride + row] = sums.total(m, n, r);
      }
}

#else

template <class S> DEVICE void product(const Weights<S>&, const char*, Real*) {}

#endif

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int row, int k);  // of the cell

// The same, one number at a time.
template <int PHASE> DEVICE void plain_product(const Arguments& args, long e, int cta, const char* u, Real* z) {
  constexpr int rows = PHASE ? PRODUCT_ROWS_1 : PRODUCT_ROWS_0, columns = PHASE ? PRODUCT_COLUMNS_1 : PRODUCT_COLUMNS_0;
  for (int n = threadIdx.x; n < rows * R; n += W * 32) {
    const int row = n / R, b = n % R;
    Real sum = 0;
    for (int k = 0; k < columns; k++) sum += weight_at<PHASE>(args, e, cta, row, k) * ((const Real*)(u + b * kStride))[k];
    z[b * kZStride + row] = sum;
  }
}

template <int PHASE, class S> DEVICE void pack_tile(const Arguments& args, long e, int cta, int tile, int lane, uint4* to) {
#if PARTS > 0
  constexpr int rows = PHASE ? PRODUCT_ROWS_1 : PRODUCT_ROWS_0, columns = PHASE ? PRODUCT_COLUMNS_1 : PRODUCT_COLUMNS_0;
  const int m = tile / (S::KS * S::KW), kt = tile % (S::KS * S::KW), q = lane >> 2, c = lane & 3;
  float left[8];
#pragma unroll
  for (int n = 0; n < 8; n++) {  // rows q and q + 8; a lane's four places along k follow each other
    const int row = m * 16 + q + (n & 2) * 4, k = kt * 16 + 4 * c + (n & 4) / 2 + (n & 1);
    left[n] = row < rows && k < columns ? (float)weight_at<PHASE>(args, e, cta, row, k) : 0.0f;
  }
#pragma unroll
  for (int p = 0; p < P; p++) {
    unsigned parts[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
      parts[n] = rounded(left[2 * n], left[2 * n + 1]);
      left[2 * n] -= as_float(parts[n] << 16), left[2 * n + 1] -= as_float(parts[n] & 0xffff0000u);
    }
    to[p * 32 + lane] = {parts[0], parts[1], parts[2], parts[3]};
  }
#endif
}

// Lay out the weights of every trial for the products of this direction: one warp a tile.
KERNEL(256) pack(const GRID_CONSTANT Arguments args) {
  const int lane = threadIdx.x & 31, cta = blockIdx.y;
  const int tile = blockIdx.x * 8 + (threadIdx.x >> 5);
  const long e = blockIdx.z;
  if (P == 0 || tile >= kTiles) return;
  uint4* to = args.packed + ((e * C + cta) * kTiles + tile) * P * 32;
  if (tile < Shape0::kTiles) pack_tile<0, Shape0>(args, e, cta, tile, lane, to);
  else if (PHASES > 1) pack_tile<PHASES - 1, Shape1>(args, e, cta, tile - Shape0::kTiles, lane, to);
}
