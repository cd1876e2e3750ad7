// The gradient of a matrix of weights: for each trial, the sum over all steps and sequences of what came back (dz, a row of
// the result for each number) times what the matrix read (a column of the result for each).
//
// Torch's own products take several times as long on such shapes: a hundred numbers or two on each side, and a sum over all
// of 10,000s. Operands are taken apart as in product.cuh. Either of them is the tall one, the other the wide one. A block takes
// one range of the sum and as much of the result as its registers hold; the ranges' results are added up afterwards, always
// in the same order.
//
// Four warps of a block read both operands ahead, take them apart and put them into a ring of stages in shared memory. The
// others multiply: outer_groups.cuh and outer_warps.cuh, the two ways to do so.
#pragma once

#include "kernels/cuh/parts.cuh"
#include "kernels/cuh/ring.cuh"

constexpr int P = PARTS;
constexpr int kReading = 4;  // warps: each takes a quarter of every chunk of the sum

struct Operand {
  const float* at;     // [E, depth, places]; delayed, [E, depth - delay, width]
  long trial, step;
  const float* first;  // delayed: the end of what was read before that, [E, at least delay, width], with the same step
  long first_trial;
  long places, stride;  // of the result, and from one to the next in it
};

struct Arguments {
  long E, depth;       // trials, and numbers that are added up
  Operand tall, wide;
  long width;          // of what is read at several delays: it is the tall one, with so many places for each of them
  long delays[16];
  long per_range;      // numbers of the sum for each block
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
  METHOD void begin(const Arguments& args, const Operand& operand, int place, int end, Distance distance) {
    const float *at = operand.at + blockIdx.z * operand.trial, *first = operand.first + blockIdx.z * operand.first_trial;
    const int width = (int)args.width;
    to_first = operand.first ? (const char*)first - (const char*)at : 0;
    step = 4 * (int)operand.step, left = end - place;
    hold(to_first), hold(left);
#pragma unroll
    for (int n = 0; n < kDelays; n++) {
      const int own = place + distance(n), which = DELAYS && own < end ? own / width : 0;
      delay[n] = operand.first ? (int)args.delays[which] : 0;
      base[n] = (const char*)(at + own - which * width) - (long)delay[n] * step;
      hold(delay[n]), hold(base[n]);
    }
  }
  // A number of the nth place; without delays, of the first place. Behind the end of the range, the last one of it.
  METHOD const float* find(int n, int number, int end) const {
    const int at = number < end ? number : end - 1;
    return (const float*)(base[n] + (long)at * step + (at < delay[n] ? to_first : 0));
  }
};

#if GROUPED
#include "kernels/cuh/outer_groups.cuh"
#else
#include "kernels/cuh/outer_warps.cuh"
#endif

KERNEL(32 * (kMultiplying + kReading)) outer(const GRID_CONSTANT Arguments args) {
  Counter *full = (Counter*)shared_memory(), *empty = full + STAGES;
  Stages stages = (Stages)(shared_memory() + COUNTERS);
  if (threadIdx.x == 0)
    for (int n = 0; n < STAGES; n++) begin_counter(full + n, kReading), begin_counter(empty + n, kMultiplying);
  sync_block();
  const int blocks_across = (int)((args.wide.places + kWide - 1) / kWide);
  const int tall0 = blockIdx.x / blocks_across * kTall, wide0 = blockIdx.x % blocks_across * kWide;
  const long first = blockIdx.y * args.per_range, last = first + args.per_range;
  const int begin = (int)first, end = (int)(last < args.depth ? last : args.depth);
  if (threadIdx.x >= 32 * kMultiplying) {
    read_range(args, tall0, wide0, begin, end, stages, full, empty);
  } else {
    Sums sum = {};
    multiply_range(sum, begin, end, stages, full, empty);
    write_sums(args, sum, tall0, wide0);
  }
}
