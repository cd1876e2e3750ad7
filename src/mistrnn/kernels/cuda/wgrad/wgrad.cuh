// The gradient of a matrix of weights: for each trial, the sum over all steps and sequences of what came back (dz, a row of
// the result for each number) times what the matrix read (a column of the result for each).
//
// Torch's own products take several times as long on such shapes: a hundred numbers or two on each side, and a sum over all
// of 10,000s. Operands are taken apart as in gemm.cuh. Either of them is the tall one, the other the wide one. A block takes
// one range of the sum and as much of the result as its registers hold; the ranges' results are added up afterwards, always
// in the same order.
//
// Four warps of a block read both operands ahead, take them apart and put them into a ring of stages in shared memory. The
// others multiply: wgrad_warpgroup.cuh and wgrad_warp.cuh, the two ways to do so.
#pragma once

#include "kernels/cuda/common/bf16_splits.cuh"
#include "kernels/cuda/common/pipeline.cuh"

constexpr int P = SPLITS;
constexpr int kProducerWarps = 4;  // warps: each takes a quarter of every chunk of the sum

struct Operand {
  const float* data;   // [E, depth, places]; delayed, [E, depth - delay, width]
  long trial_stride, step_stride;
  const float* initial;  // delayed: the end of what was read before that, [E, at least delay, width], with the same step
  long initial_trial_stride;
  long columns, result_stride;  // of the result, and from one to the next in it
};

struct WgradArguments {
  long E, depth;       // trials, and numbers that are added up
  Operand a, b;
  long width;          // of what is read at several delays: it is the tall one, with so many places for each of them
  long delays[16];
  long range;      // numbers of the sum for each block
  float* result;       // [ranges, E, rows, columns]
};

// Where a lane finds the numbers of an operand: so many of its places, the first and others at known distances from it.
template <int LOADS, bool DELAYS> struct Source {
  static constexpr int kDelays = DELAYS ? LOADS : 1;  // one for each place, or one for all
  const char* base[kDelays];  // where number 0 would be, had the operand not begun later
  int delay[kDelays];         // the first number that the operand itself holds
  long to_first;              // from there to what was read before, in bytes
  int step, left;             // in bytes, too; how many places there are from the lane's first one on

  // From the lane's first place up to where the operand or the block ends; `distance` tells that of the nth.
  template <class Distance>
  METHOD void begin(const WgradArguments& args, const Operand& operand, int place, int end, Distance distance) {
    const float *at = operand.data + blockIdx.z * operand.trial_stride, *first = operand.initial + blockIdx.z * operand.initial_trial_stride;
    const int width = (int)args.width;
    to_first = operand.initial ? (const char*)first - (const char*)at : 0;
    step = 4 * (int)operand.step_stride, left = end - place;
    make_opaque(to_first), make_opaque(left);
#pragma unroll
    for (int n = 0; n < kDelays; n++) {
      const int own = place + distance(n), which = DELAYS && own < end ? own / width : 0;
      delay[n] = operand.initial ? (int)args.delays[which] : 0;
      base[n] = (const char*)(at + own - which * width) - (long)delay[n] * step;
      make_opaque(delay[n]), make_opaque(base[n]);
    }
  }
  // A number of the nth place; without delays, of the first place. Behind the end of the range, the last one of it.
  METHOD const float* find(int n, int number, int end) const {
    const int at = number < end ? number : end - 1;
    return (const float*)(base[n] + (long)at * step + (at < delay[n] ? to_first : 0));
  }
};

#if USE_WGMMA
#include "kernels/cuda/wgrad/wgrad_warpgroup.cuh"
#else
#include "kernels/cuda/wgrad/wgrad_warp.cuh"
#endif

KERNEL(32 * (kConsumerWarps + kProducerWarps)) wgrad(const GRID_CONSTANT WgradArguments args) {
  Mbarrier *full = (Mbarrier*)shared_memory(), *empty = full + STAGES;
  Stages stages = (Stages)(shared_memory() + BARRIER_BYTES);
  if (threadIdx.x == 0)
    for (int n = 0; n < STAGES; n++) mbarrier_init(full + n, kProducerWarps), mbarrier_init(empty + n, kConsumerWarps);
  sync_block();
  const int blocks_n = (int)((args.b.columns + kBlockN - 1) / kBlockN);
  const int m0 = blockIdx.x / blocks_n * kBlockM, n0 = blockIdx.x % blocks_n * kBlockN;
  const long first = blockIdx.y * args.range, last = first + args.range;
  const int begin = (int)first, end = (int)(last < args.depth ? last : args.depth);
  if (threadIdx.x >= 32 * kConsumerWarps) {
    produce(args, m0, n0, begin, end, stages, full, empty);
  } else {
    Accumulators sum = {};
    consume(sum, begin, end, stages, full, empty);
    epilogue(args, sum, m0, n0);
  }
}
