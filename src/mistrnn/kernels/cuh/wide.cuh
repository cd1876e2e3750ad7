// Large layers of many trials: all trials advance together, and a step is a few launches over all of them, by turns a
// product and what the cell makes of it.
//
// In the other kernels (recurrence.cuh) blocks keep their weights and take a few sequences through all steps. The weights
// of a large layer fill many multiprocessors, so that the trials would queue up for them. Here the weights stream past,
// each of them once a step, for all sequences of its trial.
//
// Every vector lies as the caller sees it, sequence after sequence. Between the products a block has all units of a few
// sequences, and a thread four units that follow each other. What a product reads, u, lies as the tensor cores want it:
// a lane's share of a tile of 8 sequences and 16 units is four units of one sequence, in parts (see product.cuh), and the
// shares of the 32 lanes follow each other.
#pragma once

#include "kernels/cuh/arguments.cuh"

constexpr int W = WARPS, NT = SEQUENCE_TILES;  // of a block of the product: a warp has 32 rows of it, for NT x 8 sequences
constexpr int kThreads = H / 4, kAtOnce = SEQUENCES;  // of a block between the products; it takes its sequences in turn
constexpr int kSumsX = BACKWARD && kInline, kKinds = 1 + kSumsX;  // sums over steps: of dz, of dz x
constexpr int kShare = 8 * P;  // bytes of a lane's share of a tile of u

struct Call {
  Arguments args;
  char* u[2];      // what each product reads: [E, its depth / 16, tiles of sequences, 32, kShare]
  Real* z;         // what the last product gave: [E, B, Z_STRIDE]
  Real* carried;   // [E, B, H] what LSTM hands from step to step beside its state: c, and backwards its gradient
  long tiles;      // of sequences in u
  long step;
};

// Four units of a sequence.
struct Four {
  float v[4];
};
#define EACH_UNIT _Pragma("unroll") for (int i = 0; i < 4; i++)
#define EACH_DELAY _Pragma("unroll") for (int d = 0; d < D; d++)

DEVICE Four load(const float* from) {
  const float4 four = *(const float4*)from;
  return {{four.x, four.y, four.z, four.w}};
}
DEVICE void store(float* to, const Four& v) { *(float4*)to = {v.v[0], v.v[1], v.v[2], v.v[3]}; }
// From and to rows that need not begin at a multiple of 16 bytes.
DEVICE Four load_loose(const float* from) { return {{from[0], from[1], from[2], from[3]}}; }
template <bool ALIGNED> DEVICE void store_loose(float* to, const Four& v) {
  if (ALIGNED) store(to, v);
  else EACH_UNIT to[i] = v.v[i];
}

// What a thread sees of a step between the products.
struct Step {
  const Call& call;
  const Arguments& args;
  const int s, unit, lane;  // the step, the first of the thread's four units
  const long e;

  METHOD Step(const Call& call)
      : call(call), args(call.args), s((int)call.step), unit(4 * threadIdx.x), lane(threadIdx.x & 31), e(blockIdx.y) {}

  // The sequences of this block.
  METHOD int first() const { return blockIdx.x * kAtOnce; }
  METHOD int end() const { return first() + kAtOnce < args.B ? first() + kAtOnce : (int)args.B; }

  // Where the numbers of a sequence at step t begin, in tensors [E, T, B, width] and [E, m, B, H].
  METHOD long row(int t, int b, int width) const { return ((e * args.T + t) * args.B + b) * width; }
  METHOD long state_row(long trial, int m, int b) const { return e * trial + (m * args.B + b) * H + unit; }
  METHOD const float* z(int b) const { return call.z + (e * args.B + b) * Z_STRIDE; }
  // The state of step t, or one from before the first step.
  METHOD const float* state(int t, int b) const {
    return t >= 0 ? args.output + row(t, b, H) + unit : args.initial_h + state_row(args.initial_h_trial, M + t, b);
  }
  METHOD float* carried(int b) const { return call.carried + (e * args.B + b) * H + unit; }

  METHOD float x(int b) const {
    return kInline && s >= 0 ? args.x[e * args.x_trial + s * args.x_time + b * args.x_sequence] : 0;
  }
  // What the output and the final state send to the state of step t, which may be one before the first.
  METHOD Four outer(int t, int b) const {
    Four dh = {{0, 0, 0, 0}};
    if (args.d_output && t >= 0)
      dh = load_loose(args.d_output + e * args.d_output_trial + t * args.d_output_time + b * args.d_output_sequence + unit);
    const int back = (int)args.T - t;
    if (args.d_final_h && back <= M) {
      const Four more = load(args.d_final_h + state_row(args.d_final_h_trial, M - back, b));
      EACH_UNIT dh.v[i] += more.v[i];
    }
    return dh;
  }

  // Write what a product will read: four units of sequence b, from place `first` of the product's depth on.
  METHOD void publish(int product, int depth, int first, int b, const Four& v) const {
    const long tile = (e * (depth / 16) + first / 16) * call.tiles + b / 8;
    char* to = call.u[product] + (tile * 32 + b % 8 * 4 + first % 16 / 4) * kShare;
    Four left = v;
#pragma unroll
    for (int p = 0; p < P; p++) {
      const uint2 part = {rounded(left.v[0], left.v[1]), rounded(left.v[2], left.v[3])};
      *(uint2*)(to + 8 * p) = part;
      left.v[0] -= as_float(part.x << 16), left.v[1] -= as_float(part.x & 0xffff0000u);
      left.v[2] -= as_float(part.y << 16), left.v[3] -= as_float(part.y & 0xffff0000u);
    }
  }

  // Add to this block's own sums over the steps, [E, blocks, kinds, columns], which run from the last step to the first.
  METHOD void add_to_sum(int kind, int column, float v) const {
    float* to = args.sums + ((e * gridDim.x + blockIdx.x) * kKinds + kind) * kColumns + column;
    *to = s + 1 < args.T ? *to + v : v;
  }
};

// What the inputs give to four units of a gate, whose parameters begin at `row`.
struct GateInput {
  Four weight, bias;
  int at;

  METHOD GateInput(const Step& k, int row) : at(row + k.unit) {
    const Arguments& args = k.args;
    EACH_UNIT weight.v[i] = kInline ? args.weight_ih[k.e * args.weight_ih_trial + at + i] : 0;
    EACH_UNIT bias.v[i] = kInline && kBias ? args.bias[k.e * args.bias_trial + at + i] : 0;
  }
  METHOD void add(const Step& k, int b, Four& v) const {
    if (kInline) {
      const float x = k.x(b);
      EACH_UNIT v.v[i] += weight.v[i] * x + bias.v[i];
    } else {
      const float* projected = k.args.projected + k.row(k.s, b, kG) + at;
      EACH_UNIT v.v[i] += projected[i];
    }
  }
};

// The gradient of four units of a gate, whose columns begin at `column`: it is written, and added up over all sequences.
struct GateGradient {
  Four sum[kKinds];
  int at;

  METHOD GateGradient(const Step& k, int column) : at(column + k.unit) {
#pragma unroll
    for (int n = 0; n < kKinds; n++) sum[n] = {{0, 0, 0, 0}};
  }
  template <bool ALIGNED> METHOD void write(const Step& k, int b, const Four& v) {
    const float x = kSumsX ? k.x(b) : 0;
    EACH_UNIT {
      sum[0].v[i] += v.v[i];
      if (kSumsX) sum[kSumsX].v[i] += v.v[i] * x;
    }
    store_loose<ALIGNED>(k.args.dz + k.row(k.s, b, kColumnStride) + at, v);
  }
  METHOD void finish(const Step& k) const {
#pragma unroll
    for (int n = 0; n < kKinds; n++) EACH_UNIT k.add_to_sum(n, at + i, sum[n].v[i]);
  }
};

// The product: z = A u for all sequences of every trial, A with TALL x 32 rows and DEPTH x 16 columns, packed as in
// product.cuh. The tiles of 32 rows of all trials stand in one line, and a block takes W of them: of one trial, or of two.
// Weights and u come to shared memory in stages, several of them ahead.
constexpr int kAhead = AHEAD;  // tiles along the depth in a stage
constexpr int kWeights = W * 2 * P * 512, kU = NT * 32 * kShare;  // bytes of such a tile: of all warps, of a trial
constexpr int kStage = kAhead * (kWeights + 2 * kU);
constexpr int kTurns = P == 3 ? 2 : 4;  // tiles that take turns, because a sum waits for its last product

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

template <int TALL, int DEPTH> DEVICE void multiply(const Call& call, const uint4* weights, const char* u) {
  static_assert(W <= TALL + 1, "a block meets two trials at most");
  char* memory = shared_memory();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  const long all = call.args.E * TALL, first = (long)blockIdx.x * W, own = first + warp;
  const long last = (first + W < all ? first + W : all) - 1;
  const long e = own / TALL, first_e = first / TALL;
  const bool works = own < all;

  // What this thread copies of every tile: the weights of its warp, and some of the 16 bytes of u.
  constexpr int kChunks = kU / 16, kCopies = (2 * kChunks + 32 * W - 1) / (32 * W);
  const char* from_weights = (const char*)(weights + own * (2 * DEPTH * P * 32) + lane);
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

// The cell says which weight stands where.
template <int PRODUCT> DEVICE float weight_at(const Arguments& args, long e, int row, int k);

template <int PRODUCT> DEVICE void pack_tile(const Arguments& args, long e, int row0, int k0, int lane, uint4* to) {
  pack_parts(lane, to, [&](int row, int k) { return weight_at<PRODUCT>(args, e, row0 + row, k0 + k); });
}

// Lay out the weights of every trial for both products: one warp a tile.
constexpr int kTiles0 = 2 * TALL_0 * DEPTH_0, kTiles1 = 2 * TALL_1 * DEPTH_1;
KERNEL(256) pack(const GRID_CONSTANT Call call) {
  const int lane = threadIdx.x & 31, n = blockIdx.x * 8 + (threadIdx.x >> 5);
  const long e = blockIdx.y;
  uint4* to = call.args.packed;
  if (n < kTiles0)
    pack_tile<0>(call.args, e, n / DEPTH_0 * 16, n % DEPTH_0 * 16, lane, to + (e * kTiles0 + n) * (P * 32));
  else if (n < kTiles0 + kTiles1)
    pack_tile<1>(call.args, e, (n - kTiles0) / DEPTH_1 * 16, (n - kTiles0) % DEPTH_1 * 16, lane,
                 to + (call.args.E * kTiles0 + e * kTiles1 + n - kTiles0) * (P * 32));
}

KERNEL(32 * W) multiply_0(const GRID_CONSTANT Call call) { multiply<TALL_0, DEPTH_0>(call, call.args.packed, call.u[0]); }
#if PHASES > 1
KERNEL(32 * W) multiply_1(const GRID_CONSTANT Call call) {
  multiply<TALL_1, DEPTH_1>(call, call.args.packed + call.args.E * kTiles0 * P * 32, call.u[1]);
}
#endif
