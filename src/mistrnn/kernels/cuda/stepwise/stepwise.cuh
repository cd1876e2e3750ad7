// Large layers of many trials: all trials advance together, and a step is a few launches over all of them, by turns a
// product and what the cell makes of it.
//
// In the other kernels (recurrence.cuh) blocks keep their weights and take a few sequences through all steps. The weights
// of a large layer fill many multiprocessors, so that the trials would queue up for them. Here the weights stream past,
// each of them once a step, for all sequences of its trial.
//
// Every vector lies as the caller sees it, sequence after sequence. Between the products a block has all units of a few
// sequences, and a thread four units that follow each other. What a product reads, u, lies in parts (see gemm.cuh) as the
// tensor cores want it: stepwise_warpgroup.cuh and stepwise_warp.cuh, the two ways to multiply.
#pragma once

#include "kernels/cuda/persistent/arguments.cuh"

constexpr int NT = SEQUENCE_TILES;  // of a block of the product: it has NT x 8 sequences
constexpr int kThreads = H / 4;     // of a block between the products; it takes its sequences in turn
#define POINTWISE KERNEL_OCCUPANCY(kThreads, RESIDENT_THREADS > kThreads ? RESIDENT_THREADS / kThreads : 1)
constexpr int kSumsX = BACKWARD && kFusedInput, kReductions = 1 + kSumsX;  // sums over steps: of dz, of dz x

struct StepArguments {
  Arguments args;
  char* u[2];      // what each product reads: [E, its depth, sequences], in tiles
  Real* z;         // what the last product gave: [E, B, Z_STRIDE]
  Real* carried;   // [E, B, H] what LSTM hands from step to step beside its state: c, and backwards its gradient
  long sequence_tiles;      // of sequences in u
  long sequences;  // of a block between the products
  long step;
};

// Four units of a sequence.
struct Vector4 {
  float v[4];
};
#define EACH_UNIT _Pragma("unroll") for (int i = 0; i < 4; i++)
#define EACH_DELAY _Pragma("unroll") for (int d = 0; d < D; d++)

DEVICE Vector4 load(const float* from) {
  const float4 four = *(const float4*)from;
  return {{four.x, four.y, four.z, four.w}};
}
DEVICE void store(float* to, const Vector4& v) { *(float4*)to = {v.v[0], v.v[1], v.v[2], v.v[3]}; }
// The second-level cache is for what the next kernels read: z, u and the last states. Weights, what is far away and what is
// kept for the run backwards pass it by.
DEVICE Vector4 load_streamed(const float* from) {
  const float4 four = load_streaming((const float4*)from);
  return {{four.x, four.y, four.z, four.w}};
}
constexpr int kNear = 2;  // steps
DEVICE Vector4 load_from(int steps_away, const float* from) { return steps_away <= kNear ? load(from) : load_streamed(from); }
DEVICE void store_streamed(float* to, const Vector4& v) { store_streaming((float4*)to, float4{v.v[0], v.v[1], v.v[2], v.v[3]}); }
// From and to rows that need not begin at a multiple of 16 bytes.
DEVICE Vector4 load_unaligned(const float* from) { return {{from[0], from[1], from[2], from[3]}}; }
template <bool ALIGNED> DEVICE void store_unaligned(float* to, const Vector4& v) {
  if (ALIGNED) store_streamed(to, v);
  else EACH_UNIT to[i] = v.v[i];
}

#if USE_WGMMA
#include "kernels/cuda/stepwise/stepwise_warpgroup.cuh"
#else
#include "kernels/cuda/stepwise/stepwise_warp.cuh"
#endif

// What a thread sees of a step between the products.
struct Step {
  const StepArguments& given;
  const Arguments& args;
  const int s, unit, lane;  // the step, the first of the thread's four units
  const long e;

  METHOD Step(const StepArguments& given)
      : given(given), args(given.args), s((int)given.step), unit(4 * threadIdx.x), lane(threadIdx.x & 31), e(blockIdx.y) {}

  // The sequences of this block.
  METHOD int first() const { return blockIdx.x * (int)given.sequences; }
  METHOD int end() const { return (int)(first() + given.sequences < args.B ? first() + given.sequences : args.B); }

  // Where the numbers of a sequence at step t begin, in tensors [E, T, B, width] and [E, m, B, H].
  METHOD long row(int t, int b, int width) const { return ((e * args.T + t) * args.B + b) * width; }
  METHOD long state_row(long trial, int m, int b) const { return e * trial + (m * args.B + b) * H + unit; }
  METHOD const float* z(int b) const { return given.z + (e * args.B + b) * Z_STRIDE; }
  // The state of step t, or one from before the first step.
  METHOD const float* state(int t, int b) const {
    return t >= 0 ? args.output + row(t, b, H) + unit : args.initial_h + state_row(args.initial_h_trial, M + t, b);
  }
  METHOD float* carried(int b) const { return given.carried + (e * args.B + b) * H + unit; }

  METHOD float x(int b) const {
    return kFusedInput && s >= 0 ? args.x[e * args.x_trial + s * args.x_time + b * args.x_sequence] : 0;
  }
  // What the output and the final state send to the state of step t, which may be one before the first.
  METHOD Vector4 d_output(int t, int b) const {
    Vector4 dh = {{0, 0, 0, 0}};
    if (args.d_output && t >= 0)
      dh = load_unaligned(args.d_output + e * args.d_output_trial + t * args.d_output_time + b * args.d_output_sequence + unit);
    const int back = (int)args.T - t;
    if (args.d_final_h && back <= M) {
      const Vector4 more = load(args.d_final_h + state_row(args.d_final_h_trial, M - back, b));
      EACH_UNIT dh.v[i] += more.v[i];
    }
    return dh;
  }

  // Write what a product will read: four units of sequence b, from place `first` of the product's depth on.
  METHOD void publish(int product, int depth, int first, int b, const Vector4& v) const {
    Vector4 left = v;
#pragma unroll
    for (int p = 0; p < P; p++) {
      const uint2 part = {to_bf16(left.v[0], left.v[1]), to_bf16(left.v[2], left.v[3])};
      *(uint2*)split_of_u(given, product, depth, e, first, b, p) = part;
      left.v[0] -= as_float(part.x << 16), left.v[1] -= as_float(part.x & 0xffff0000u);
      left.v[2] -= as_float(part.y << 16), left.v[3] -= as_float(part.y & 0xffff0000u);
    }
  }

  // Add to this block's own sums over the steps, [E, blocks, kinds, columns], which run from the last step to the first.
  METHOD void add_to_sum(int kind, int column, float v) const {
    float* to = args.sums + ((e * gridDim.x + blockIdx.x) * kReductions + kind) * kGradientColumns + column;
    *to = s + 1 < args.T ? *to + v : v;
  }
};

// What the inputs give to four units of a gate, whose parameters begin at `row`.
struct GateInput {
  Vector4 weight, bias;
  int at;

  METHOD GateInput(const Step& k, int row) : at(row + k.unit) {
    const Arguments& args = k.args;
    EACH_UNIT weight.v[i] = kFusedInput ? args.weight_ih[k.e * args.weight_ih_trial + at + i] : 0;
    EACH_UNIT bias.v[i] = kBias ? args.bias[k.e * args.bias_trial + at + i] : 0;
  }
  METHOD void add(const Step& k, int b, Vector4& v) const {
    if (kFusedInput) {
      const float x = k.x(b);
      EACH_UNIT v.v[i] += weight.v[i] * x + bias.v[i];
    } else {
      const float* projected = k.args.projected + k.row(k.s, b, kG) + at;
      EACH_UNIT v.v[i] += projected[i] + bias.v[i];
    }
  }
};

// The gradient of four units of a gate, whose columns begin at `column`: it is written, and added up over all sequences.
struct GateGradient {
  Vector4 sum[kReductions];
  int at;

  METHOD GateGradient(const Step& k, int column) : at(column + k.unit) {
#pragma unroll
    for (int n = 0; n < kReductions; n++) sum[n] = {{0, 0, 0, 0}};
  }
  template <bool ALIGNED> METHOD void write(const Step& k, int b, const Vector4& v) {
    const float x = kSumsX ? k.x(b) : 0;
    EACH_UNIT {
      sum[0].v[i] += v.v[i];
      if (kSumsX) sum[kSumsX].v[i] += v.v[i] * x;
    }
    store_unaligned<ALIGNED>(k.args.dz + k.row(k.s, b, kGradientStride) + at, v);
  }
  METHOD void finish(const Step& k) const {
#pragma unroll
    for (int n = 0; n < kReductions; n++) EACH_UNIT k.add_to_sum(n, at + i, sum[n].v[i]);
  }
};

// The cell says which weight stands where.
template <int GEMM> DEVICE float weight_at(const Arguments& args, long e, int row, int k);

// Lay out the weights of every trial for both products: one warp a tile.
constexpr int kTiles0 = packed_tiles(ROW_TILES_0, K_TILES_0), kTiles1 = packed_tiles(ROW_TILES_1, K_TILES_1);

template <int GEMM, int K_TILES> DEVICE void pack_tile_of(const Arguments& args, long e, int n, int lane, char* to) {
  const int row0 = n / K_TILES * kRowTile, k0 = n % K_TILES * kDepthTile;
  pack_tile(lane, to, [&](int row, int k) { return weight_at<GEMM>(args, e, row0 + row, k0 + k); });
}

KERNEL(256) pack(const GRID_CONSTANT StepArguments given) {
  const int lane = threadIdx.x & 31, n = blockIdx.x * 8 + (threadIdx.x >> 5);
  const long e = blockIdx.y;
  char* to = (char*)given.args.packed;
  if (n < kTiles0)
    pack_tile_of<0, K_TILES_0>(given.args, e, n, lane, to + (e * kTiles0 + n) * kPackedTile);
  else if (n < kTiles0 + kTiles1)
    pack_tile_of<1, K_TILES_1>(given.args, e, n - kTiles0, lane, to + (given.args.E * kTiles0 + e * kTiles1 + n - kTiles0) * kPackedTile);
}

KERNEL(kGemmThreads) gemm_0(const GRID_CONSTANT StepArguments given) {
  gemm<ROW_TILES_0, K_TILES_0>(given, (const char*)given.args.packed, given.u[0]);
}
#if PHASES > 1
KERNEL(kGemmThreads) gemm_1(const GRID_CONSTANT StepArguments given) {
  gemm<ROW_TILES_1, K_TILES_1>(given, (const char*)given.args.packed + given.args.E * kTiles0 * kPackedTile, given.u[1]);
}
#endif
