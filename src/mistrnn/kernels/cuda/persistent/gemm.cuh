// The product of a step, A u, on the tensor cores: A holds weights and stays, u is what the block's sequences read.
//
// A float32 operand is taken apart into PARTS bfloat16 numbers that add up to it (two keep 16 bits of it, three keep all
// 24), and the product is the sum of the products of parts that count: 1, 3 or 6 of them. Units stand on the rows of a tile
// and sequences on its columns.
//
// A tile of A takes each lane 16 bytes per part (kPieces times), packed beforehand in the order in which they are needed
// (`pack`). They lie in registers as far as there are any, then in shared memory, then in the second-level cache.
//
// One sequence alone (ROWS 1) is multiplied in plain float32: a lane has the weights by which rows q and q + 8 of a tile read
// its four places along k, again 16 bytes each, and the four lanes of a row add up what they have.
//
// Without PARTS the product is computed one number at a time in the type of the run, from the weights as they are.
#pragma once

#include "kernels/cuda/persistent/block.cuh"

constexpr int kFragments = kSingleSequence ? 2 : P;

// TALL row blocks of tiles for every warp's units, WIDE tiles along what a range reads. Of the WIDE, the first IN_REGISTERS stay
// there, then come IN_SHARED, and the rest is read from global memory each time.
template <int ROW_BLOCKS, int K_TILES, int IN_REGISTERS, int IN_SHARED> struct GemmShape {
  static constexpr int kRowBlocks = ROW_BLOCKS, kKTiles = K_TILES, kRegisters = IN_REGISTERS, kShared = IN_SHARED;
  static constexpr int MB = ROW_BLOCKS * TW;                // tiles of a warp on top of each other
  static constexpr int kTiles = KS * W * MB * K_TILES;   // of the whole product
  static constexpr int kHeld = IN_REGISTERS * MB * kFragments;  // uint4 of a lane
  static constexpr int kSharedTiles = KS * W * MB * IN_SHARED;
};

typedef GemmShape<SHAPE_0> Shape0;
typedef GemmShape<SHAPE_1> Shape1;
constexpr int kSoftmaxTiles = SOFTMAX_WIDTH > 0 ? W * TW : 0;  // of the softmax's rows: what is read of a warp's own units
constexpr int kTiles = Shape0::kTiles + (PHASES > 1 ? Shape1::kTiles : 0) + kSoftmaxTiles;  // of a block of the cluster

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k);  // of the cell

DEVICE int unit_at(int place);  // of u

// The weight by which delay d of a softmax reads a unit; 0 if there are not so many. Only MIST has one.
#if SOFTMAX_WIDTH > 0
DEVICE Real softmax_weight(const Arguments& args, long e, int d, int unit);
#else
DEVICE Real softmax_weight(const Arguments&, long, int, int) { return 0; }
#endif

// What the softmax of MIST reads of a warp's own units, and backwards what it sends to them.
struct Softmax {
  // Gradients of all delays, as a product reads them.
  struct Gradient {
#if SPLITS > 0
    uint2 part[NT][P];
#else
    Real of_delay[kSlots][kRows];
#endif
  };
  uint4 held[TW * (P > 0 ? kFragments : 1)];
  METHOD void begin(const uint4* packed) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % W;
#pragma unroll
    for (int n = 0; n < TW * kFragments; n++) held[n] = load_weights(packed + (warp * TW * kFragments + n) * 32 + lane);
  }
  METHOD void add_own(Block& block, Real (&v)[kSlots][kRows]) const;
  static METHOD void take(const Block& block, const Real (&v)[kSlots][kRows], Gradient& gradient);
  METHOD void send_back(const Block& block, const Gradient& gradient, Values& z) const;
};

template <class S> struct Weights {
  uint4 held[S::kHeld > 0 ? S::kHeld : 1];
  const uint4* global;  // this lane's, of this warp: [wide, MB, kPieces, 32]
  const uint4* shared;

  // Take what stays in registers and in shared memory; a warp copies just what it will read itself.
  METHOD void begin(const uint4* packed, uint4* room) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;  // of all ranges
    global = packed + (long)warp * S::MB * S::kKTiles * kFragments * 32 + lane;
    uint4* own = room + warp * S::MB * S::kShared * kFragments * 32 + lane;
    shared = own;
#if SPLITS > 0
    // A value that is added changes nothing but tells the compiler to have the weights before the loop, not in it.
    const unsigned nothing = packed == nullptr;
#pragma unroll
    for (int n = 0; n < S::kHeld; n++) {
      held[n] = load_weights(global + n * 32);
      held[n].x += nothing, held[n].y += nothing, held[n].z += nothing, held[n].w += nothing;
    }
    for (int n = 0; n < S::kShared * S::MB * kFragments; n++) own[n * 32] = load_weights(global + (S::kHeld + n) * 32);
    sync_warp();
#endif
  }
};

#if SEQUENCES == 1

typedef float4 Fragment;  // what a lane reads of u for a tile

// Eight sums at least that do not wait for each other.
template <class S> struct Accumulators {
  static constexpr int kLanes = S::MB == 1 ? 4 : S::MB < 4 ? 2 : 1;
  float value[S::MB][2][kLanes];

  METHOD void zero() {
#pragma unroll
    for (int m = 0; m < S::MB; m++)
#pragma unroll
      for (int n = 0; n < 2 * kLanes; n++) value[m][n / kLanes][n % kLanes] = 0;
  }
  METHOD void add(int, int m, int, const uint4* a, const Fragment& b) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
      float(&sums)[kLanes] = value[m][p];
      sums[0] = fmaf(as_float(a[p].x), b.x, sums[0]);
      sums[1 % kLanes] = fmaf(as_float(a[p].y), b.y, sums[1 % kLanes]);
      sums[2 % kLanes] = fmaf(as_float(a[p].z), b.z, sums[2 % kLanes]);
      sums[3 % kLanes] = fmaf(as_float(a[p].w), b.w, sums[3 % kLanes]);
    }
  }
  // Over the four lanes, to those that have the unit.
  METHOD float total(int g, int) const {
    float both[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
      const float(&sums)[kLanes] = value[g][p];
      both[p] = kLanes == 4 ? (sums[0] + sums[1 % kLanes]) + (sums[2 % kLanes] + sums[3 % kLanes])
                            : kLanes == 2 ? sums[0] + sums[1 % kLanes] : sums[0];
    }
    const bool upper = threadIdx.x & 1;
    const float sum = (upper ? both[1] : both[0]) + shuffle_xor(upper ? both[0] : both[1], 1);
    return sum + shuffle_xor(sum, 2);
  }
};

DEVICE void read_u(const char* u, int k, Fragment (&b)[NT]) { b[0] = *(const float4*)(u + k * kTileBytes); }

METHOD void Softmax::add_own(Block& block, Real (&v)[kSlots][kRows]) const {
  Fragment b[NT];
  read_u(block.u_lane + block.buffer * R * kUStride, block.cta * W + block.warp, b);
#pragma unroll
  for (int slot = 0; slot < kSlots; slot++) {
    const uint4 a = held[slot];
    float sum = (as_float(a.x) * b[0].x + as_float(a.y) * b[0].y) + (as_float(a.z) * b[0].z + as_float(a.w) * b[0].w);
    sum += shuffle_xor(sum, 1);
    v[slot][0] = sum + shuffle_xor(sum, 2);
  }
}
METHOD void Softmax::take(const Block&, const Real (&)[kSlots][kRows], Gradient&) {}  // forwards only
METHOD void Softmax::send_back(const Block&, const Gradient&, Values&) const {}

#elif SPLITS > 0

struct Fragment {  // what a lane reads of u for a tile
  uint2 part[P];
};

// Independent sums: a tensor core takes long to answer, so that one sum after the other would wait. With many tiles there
// are enough of them, and large and small products share one (but for three parts, see below).
template <class S> struct Accumulators {
  static constexpr bool kFew = S::MB * NT < 4;
  static constexpr int kTerms = P == 1 ? 1 : kFew ? 3 : P == 2 ? 1 : 2, kLanes = S::MB * NT == 1 ? 2 : 1;
  static METHOD constexpr int term(int i, int j) {
    return P == 1 || i + j == 0 ? 0 : kFew ? (P == 2 ? 1 + i : i + j) : kTerms - 1;
  }
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
  METHOD void add(int k, int m, int n, const uint4* a, const Fragment& b) {
    float(&sums)[kTerms][4] = value[m][n][k % kLanes];
#pragma unroll
    for (int i = P - 1; i >= 0; i--)
#pragma unroll
      for (int j = P - 1 - i; j >= (P == 3 && i == 0 ? 1 : 0); j--)
        mma(sums[term(i, j)], a[i], b.part[j]);
    if (P == 3) {  // tensor cores cut off what does not fit into a sum: a long one would shrink
      float tile[4] = {0, 0, 0, 0};
      mma(tile, a[0], b.part[0]);
#pragma unroll
      for (int r = 0; r < 4; r++) sums[0][r] += tile[r];
    }
  }

  // Value i of row block g.
  METHOD float total(int g, int i) const {
    const int m = g * TW + i / (4 * NT), n = i / 4 % NT, r = i % 4;
    float sum = value[m][n][0][kTerms - 1][r];
#pragma unroll
    for (int t = kTerms - 1; t >= 0; t--)
#pragma unroll
      for (int l = t == kTerms - 1 ? 1 : 0; l < kLanes; l++) sum += value[m][n][l][t][r];
    return sum;
  }
};

// What lane q, c of the warp reads of u: the tile's column is q, and its four places along k follow each other.
DEVICE void read_u(const char* u, int k, Fragment (&b)[NT]) {
#pragma unroll
  for (int n = 0; n < NT; n++) {
    const char* from = u + n * 8 * kUStride + k * (32 * P);
    if (P == 2) {
      const uint4 both = *(const uint4*)from;
      b[n].part[0] = {both.x, both.y}, b[n].part[P - 1] = {both.z, both.w};
    } else {
#pragma unroll
      for (int p = 0; p < P; p++) b[n].part[p] = ((const uint2*)from)[p];
    }
  }
}

// What the softmax's rows give for this warp's own units, once they are published: for delays and sequences as the lanes
// have them.
METHOD void Softmax::add_own(Block& block, Real (&v)[kSlots][kRows]) const {
  float sum[NT][4];
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int r = 0; r < 4; r++) sum[n][r] = 0;
#pragma unroll
  for (int t = 0; t < TW; t++) {
    Fragment b[NT];
    read_u(block.u_lane + block.buffer * R * kUStride, (block.cta * W + block.warp) * TW + t, b);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int i = P - 1; i >= 0; i--)
#pragma unroll
        for (int j = P - 1 - i; j >= 0; j--) mma(sum[n], held[t * P + i], b[n].part[j]);
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; slot++) EACH_ROW v[slot][j] = sum[j / 2][slot * 2 + j % 2];
}

// Lane q, c of the warp gets delays 4 c to 4 c + 3 of the tile's column q.
METHOD void Softmax::take(const Block& block, const Real (&v)[kSlots][kRows], Gradient& gradient) {
  const int q = block.lane >> 2, c = block.lane & 3;
#pragma unroll
  for (int n = 0; n < NT; n++) {
    float left[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int slot = 0; slot < kSlots; slot++)
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
          const float there = shuffle((float)v[slot][2 * n + odd], (4 * c + i) % 8 * 4 + q / 2);
          if (c / 2 == slot && q % 2 == odd) left[i] = there;
        }
#pragma unroll
    for (int p = 0; p < P; p++) {
      const uint2 part = {to_bf16(left[0], left[1]), to_bf16(left[2], left[3])};
      left[0] -= as_float(part.x << 16), left[1] -= as_float(part.x & 0xffff0000u);
      left[2] -= as_float(part.y << 16), left[3] -= as_float(part.y & 0xffff0000u);
      gradient.part[n][p] = part;
    }
  }
}
METHOD void Softmax::send_back(const Block&, const Gradient& gradient, Values& z) const {
#pragma unroll
  for (int t = 0; t < TW; t++)
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float sum[P][4] = {};  // large products apart from small ones
#pragma unroll
      for (int i = P - 1; i >= 0; i--)
#pragma unroll
        for (int j = P - 1 - i; j >= 0; j--) mma(sum[i + j], held[t * P + i], gradient.part[n][j]);
#pragma unroll
      for (int p = P - 1; p >= 0; p--)
#pragma unroll
        for (int r = 0; r < 4; r++) z[(t * NT + n) * 4 + r] += sum[p][r];
    }
}

#endif

#if SPLITS > 0

template <int PHASE, class S> DEVICE void gemm(Block& block, const Weights<S>& weights, Real (&z)[S::kRowBlocks][kValues]) {
  const char* u = block.u_lane + block.buffer * R * kUStride + (KS > 1 ? threadIdx.x / (32 * W) * S::kKTiles * kTileBytes : 0);
  Accumulators<S> sums;
  sums.zero();
#pragma unroll
  for (int k = 0; k < S::kRegisters; k++) {
    Fragment b[NT];
    read_u(u, k, b);
#pragma unroll
    for (int m = 0; m < S::MB; m++)
#pragma unroll
      for (int n = 0; n < NT; n++) sums.add(k, m, n, weights.held + (k * S::MB + m) * kFragments, b[n]);
  }
  auto add_from = [&](const uint4* from, int k, int parity) {
    Fragment b[NT];
    read_u(u, k, b);
#pragma unroll
    for (int m = 0; m < S::MB; m++) {
      uint4 a[kFragments];
#pragma unroll
      for (int p = 0; p < kFragments; p++) a[p] = from[(m * kFragments + p) * 32];
#pragma unroll
      for (int n = 0; n < NT; n++) sums.add(parity, m, n, a, b[n]);
    }
  };
  if (S::kShared <= 16 && S::MB == 1) {
#pragma unroll
    for (int k = 0; k < S::kShared; k++) add_from(weights.shared + k * (S::MB * kFragments * 32), S::kRegisters + k, k % 2);
  } else {
#pragma unroll(S::MB < 4 ? 4 : 1)
    for (int k = 0; k < S::kShared; k++) add_from(weights.shared + k * (S::MB * kFragments * 32), S::kRegisters + k, 0);
  }
  constexpr int near = S::kRegisters + S::kShared;
#pragma unroll(S::MB < 4 ? 4 : 1)
  for (int k = near; k < S::kKTiles; k++) add_from(weights.global + k * (S::MB * kFragments * 32), k, 0);
#pragma unroll
  for (int g = 0; g < S::kRowBlocks; g++) EACH_VALUE z[g][i] = sums.total(g, i);
}

#else

METHOD void Softmax::add_own(Block& block, Real (&v)[kSlots][kRows]) const {
  EACH_SLOT EACH_ROW {
    const Real* u = (const Real*)block.row_of_u(block.sequence + sequence_of(j));
    const int first = (block.cta * W + block.warp) * 16 * TW;
    v[slot][j] = 0;
    for (int k = first; k < first + 16 * TW; k++) v[slot][j] += softmax_weight(block.args, block.e, d, unit_at(k)) * u[k];
  }
}
METHOD void Softmax::take(const Block&, const Real (&v)[kSlots][kRows], Gradient& gradient) {
  EACH_SLOT EACH_ROW gradient.of_delay[slot][j] = v[slot][j];
}
METHOD void Softmax::send_back(const Block& block, const Gradient& gradient, Values& z) const {
  EACH_DELAY {
    Rows v;
    EACH_ROW v[j] = block.from_owner(gradient.of_delay, d, j);
    EACH_VALUE z[i] += softmax_weight(block.args, block.e, d, block.unit + unit_of(i)) * v[row_of(i)];
  }
}

template <int PHASE, class S> DEVICE void gemm(Block& block, const Weights<S>&, Real (&z)[S::kRowBlocks][kValues]) {
  constexpr int columns = PHASE ? GEMM_COLUMNS_1 : GEMM_COLUMNS_0;
  const int first = block.warp * 16 * TW + (block.lane >> 2);
#pragma unroll
  for (int g = 0; g < S::kRowBlocks; g++)
    EACH_VALUE {
      const Real* u = (const Real*)block.row_of_u(block.sequence + sequence_of(row_of(i)));
      Real sum = 0;
      for (int k = 0; k < columns; k++) sum += weight_at<PHASE>(block.args, block.e, block.cta, g, first + unit_of(i), k) * u[k];
      z[g][i] = sum;
    }
}

#endif

#if SPLITS > 0
template <class Weight> DEVICE void pack_weights(int lane, uint4* to, Weight weight) {
#if SEQUENCES == 1
  const int q = lane >> 2, c = lane & 3;
#pragma unroll
  for (int p = 0; p < 2; p++) {
    unsigned words[4];
#pragma unroll
    for (int n = 0; n < 4; n++) words[n] = as_bits(weight(q + 8 * p, 4 * c + n));
    to[p * 32 + lane] = {words[0], words[1], words[2], words[3]};
  }
#else
  pack_splits(lane, to, weight);
#endif
}
#endif

template <int PHASE, class S> DEVICE void pack_tile(const Arguments& args, long e, int cta, int tile, int lane, uint4* to) {
#if SPLITS > 0
  constexpr int columns = PHASE ? GEMM_COLUMNS_1 : GEMM_COLUMNS_0;
  const int warp = tile / S::MB / S::kKTiles % W, m = tile % S::MB;
  const int kt = tile / S::MB / S::kKTiles / W * S::kKTiles + tile / S::MB % S::kKTiles;
  pack_weights(lane, to, [&](int row, int place) {
    const int k = kt * 16 + place;
    return k < columns ? (float)weight_at<PHASE>(args, e, cta, m / TW, (warp * TW + m % TW) * 16 + row, k) : 0.0f;
  });
#endif
}

// Lay out the weights of every trial for the products of this direction: one warp a tile.
KERNEL(256) pack(const GRID_CONSTANT Arguments args) {
  const int lane = threadIdx.x & 31, cta = blockIdx.y;
  const int tile = blockIdx.x * 8 + (threadIdx.x >> 5);
  const long e = blockIdx.z;
  if (P == 0 || tile >= kTiles) return;
  uint4* to = args.packed + ((e * C + cta) * kTiles + tile) * kFragments * 32;
  if (tile < Shape0::kTiles) pack_tile<0, Shape0>(args, e, cta, tile, lane, to);
  else if (tile < kTiles - kSoftmaxTiles) pack_tile<PHASES - 1, Shape1>(args, e, cta, tile - Shape0::kTiles, lane, to);
#if SPLITS > 0
  else pack_weights(lane, to, [&](int row, int place) {  // forwards delays read places, backwards units read delays
    const int first = (cta * W * TW + tile - (kTiles - kSoftmaxTiles)) * 16;
    return (float)(BACKWARD ? softmax_weight(args, e, place, first + row) : softmax_weight(args, e, row, unit_at(first + place)));
  });
#endif
}
