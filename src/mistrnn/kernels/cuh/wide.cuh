// Large layers of many trials: all trials advance together, and a step is a few launches over all of them, by turns a
// product and what the cell makes of it.
//
// In the other kernels (recurrence.cuh) blocks keep their weights and take a few sequences through all steps. The weights
// of a large layer fill many multiprocessors, so that the trials would queue up for them. Here the weights stream past,
// each of them once a step, for all sequences of its trial.
//
// Every vector lies as the caller sees it, sequence after sequence. Between the products a block has all units of a few
// sequences, and a thread four units that follow each other. What a product reads, u, lies in parts (see product.cuh) as the
// tensor cores want it: wide_groups.cuh and wide_warps.cuh, the two ways to multiply.
#pragma once

#include "kernels/cuh/arguments.cuh"

constexpr int NT = SEQUENCE_TILES;  // of a block of the product: it has NT x 8 sequences
constexpr int kThreads = H / 4;     // of a block between the products; it takes its sequences in turn
#define PHASE KERNEL_TOGETHER(kThreads, RESIDENT > kThreads ? RESIDENT / kThreads : 1)
constexpr int kSumsX = BACKWARD && kInline, kKinds = 1 + kSumsX;  // sums over steps: of dz, of dz x

struct Call {
  Arguments args;
  char* u[2];      // what each product reads: [E, its depth, sequences], in tiles
  Real* z;         // what the last product gave: [E, B, Z_STRIDE]
  Real* carried;   // [E, B, H] what LSTM hands from step to step beside its state: c, and backwards its gradient
  long tiles;      // of sequences in u
  long sequences;  // of a block between the products
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
// The second-level cache is for what the next kernels read: z, u and the last states. Weights, what is far away and what is
// kept for the run backwards pass it by.
DEVICE Four load_kept(const float* from) {
  const float4 four = load_once((const float4*)from);
  return {{four.x, four.y, four.z, four.w}};
}
constexpr int kNear = 2;  // steps
DEVICE Four load_from(int steps_away, const float* from) { return steps_away <= kNear ? load(from) : load_kept(from); }
DEVICE void keep(float* to, const Four& v) { store_once((float4*)to, float4{v.v[0], v.v[1], v.v[2], v.v[3]}); }
// From and to rows that need not begin at a multiple of 16 bytes.
DEVICE Four load_loose(const float* from) { return {{from[0], from[1], from[2], from[3]}}; }
template <bool ALIGNED> DEVICE void keep_loose(float* to, const Four& v) {
  if (ALIGNED) keep(to, v);
  else EACH_UNIT to[i] = v.v[i];
}

#if GROUPED
#include "kernels/cuh/wide_groups.cuh"
#else
#include "kernels/cuh/wide_warps.cuh"
#endif

// What a thread sees of a step between the products.
struct Step {
  const Call& call;
  const Arguments& args;
  const int s, unit, lane;  // the step, the first of the thread's four units
  const long e;

  METHOD Step(const Call& call)
      : call(call), args(call.args), s((int)call.step), unit(4 * threadIdx.x), lane(threadIdx.x & 31), e(blockIdx.y) {}

  // The sequences of this block.
  METHOD int first() const { return blockIdx.x * (int)call.sequences; }
  METHOD int end() const { return (int)(first() + call.sequences < args.B ? first() + call.sequences : args.B); }

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
    Four left = v;
#pragma unroll
    for (int p = 0; p < P; p++) {
      const uint2 part = {rounded(left.v[0], left.v[1]), rounded(left.v[2], left.v[3])};
      *(uint2*)part_of_u(call, product, depth, e, first, b, p) = part;
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
    EACH_UNIT bias.v[i] = kBias ? args.bias[k.e * args.bias_trial + at + i] : 0;
  }
  METHOD void add(const Step& k, int b, Four& v) const {
    if (kInline) {
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
    keep_loose<ALIGNED>(k.args.dz + k.row(k.s, b, kColumnStride) + at, v);
  }
  METHOD void finish(const Step& k) const {
#pragma unroll
    for (int n = 0; n < kKinds; n++) EACH_UNIT k.add_to_sum(n, at + i, sum[n].v[i]);
  }
};

// The cell says which weight stands where.
template <int PRODUCT> DEVICE float weight_at(const Arguments& args, long e, int row, int k);

// Lay out the weights of every trial for both products: one warp a tile.
constexpr int kTiles0 = packed_tiles(TALL_0, DEPTH_0), kTiles1 = packed_tiles(TALL_1, DEPTH_1);

template <int PRODUCT, int DEPTH> DEVICE void pack_tile_of(const Arguments& args, long e, int n, int lane, char* to) {
  const int row0 = n / DEPTH * kRowTile, k0 = n % DEPTH * kDepthTile;
  pack_tile(lane, to, [&](int row, int k) { return weight_at<PRODUCT>(args, e, row0 + row, k0 + k); });
}

KERNEL(256) pack(const GRID_CONSTANT Call call) {
  const int lane = threadIdx.x & 31, n = blockIdx.x * 8 + (threadIdx.x >> 5);
  const long e = blockIdx.y;
  char* to = (char*)call.args.packed;
  if (n < kTiles0)
    pack_tile_of<0, DEPTH_0>(call.args, e, n, lane, to + (e * kTiles0 + n) * kPackedTile);
  else if (n < kTiles0 + kTiles1)
    pack_tile_of<1, DEPTH_1>(call.args, e, n - kTiles0, lane, to + (call.args.E * kTiles0 + e * kTiles1 + n - kTiles0) * kPackedTile);
}

KERNEL(kProductThreads) multiply_0(const GRID_CONSTANT Call call) {
  multiply<TALL_0, DEPTH_0>(call, (const char*)call.args.packed, call.u[0]);
}
#if PHASES > 1
KERNEL(kProductThreads) multiply_1(const GRID_CONSTANT Call call) {
  multiply<TALL_1, DEPTH_1>(call, (const char*)call.args.packed + call.args.E * kTiles0 * kPackedTile, call.u[1]);
}
#endif
