// The gradient of outer.cuh, where four warps multiply as one: on GPUs of the generation of the H100. A group of four warps
// has 64 places of the tall operand, and all groups of a block have the same 8 NT of the wide one.
//
// A stage holds, for each part, a row of 32 numbers of the sum for every place: those of the tall operand, then those of the
// wide one, as groups.cuh has them.
#pragma once

#include "kernels/cuh/groups.cuh"

constexpr int NT = TILES;
constexpr int kTall = kRowTile * GROUPS, kWide = 8 * NT;  // places of a block: numbers of each operand
constexpr int kMultiplying = 4 * GROUPS;                  // warps
constexpr int kDepth = kDepthTile, kAhead = AHEAD;        // of the sum, in a chunk, and chunks under way
constexpr int kNumbers = kDepth / kReading;               // of a chunk, for each warp that reads
constexpr int kPart = (kTall + kWide) * kRowBytes, kStage = P * kPart;
constexpr bool kMoves = REGISTERS_TO_READ > 0;            // registers, from warps that multiply to those that read
static_assert(kNumbers == 8, "they are 16 bytes of a row");
static_assert(STAGES > 1, "a stage is given back when the products after it are under way");
typedef char* Stages;
typedef float Sums[NT][4];

// A warp that reads takes one quarter of each chunk, a lane every 32nd place. What it holds of places that do not exist does
// not matter: nobody writes what comes of it.
template <int PLACES, bool DELAYS> struct Reader {
  static constexpr int kLoads = (PLACES + 31) / 32;
  Source<kLoads, DELAYS> source;
  float values[kAhead][kLoads][kNumbers];

  METHOD void begin(const Arguments& args, const Operand& operand, int place0, int lane) {
    const int end = place0 + PLACES < (int)operand.places ? place0 + PLACES : (int)operand.places;
    source.begin(args, operand, place0 + lane, end, [](int n) { return 32 * n; });
#pragma unroll
    for (int k = 0; k < kAhead; k++)
#pragma unroll
      for (int n = 0; n < kLoads; n++)
#pragma unroll
        for (int r = 0; r < kNumbers; r++) values[k][n][r] = 0;
  }
  // Go through all places. With STORE, each place's numbers go to a stage before others come in their stead: so the first
  // are under way while the last are still taken apart.
  template <bool STORE> METHOD void load(float (&values)[kLoads][kNumbers], int number, int end, char* to = nullptr, int lane = 0) {
    const float* from[kNumbers];
    hold(source.step);
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
      if (STORE && 32 * n + lane < PLACES) store(values[n], to + 32 * n * kRowBytes);
#pragma unroll
      for (int r = 0; r < kNumbers; r++) {
        if (n < source.kDelays) from[r] = source.find(n, number + r, end);
        load_below(values[n][r], from[r] + (DELAYS ? 0 : 32 * n), 32 * n, source.left);
      }
    }
  }
  METHOD static void store(float (&value)[kNumbers], char* to) {
#pragma unroll
    for (int p = 0; p < P - 1; p++) write_for_products(to + p * kPart, next_part(value));
    write_for_products(to + (P - 1) * kPart, rounded(value));
  }
  // Forget all but so many of a place's numbers.
  METHOD static void cut(float (&values)[kLoads][kNumbers], int there) {
#pragma unroll
    for (int n = 0; n < kLoads; n++)
#pragma unroll
      for (int r = 0; r < kNumbers; r++) values[n][r] = r < there ? values[n][r] : 0;
  }
};

DEVICE void read_range(const Arguments& args, int tall0, int wide0, int begin, int end, Stages stages, Counter* full, Counter* empty) {
  if (kMoves) take_registers<REGISTERS_TO_READ>();
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) - kMultiplying, first = kNumbers * warp;  // number of a chunk
  Reader<kTall, DELAYS_OF_TALL> tall;
  Reader<kWide, false> wide;
  tall.begin(args, args.tall, tall0, lane), wide.begin(args, args.wide, wide0, lane);
#pragma unroll
  for (int k = 0; k < kAhead; k++) {
    const int number = begin + k * kDepth + first;
    tall.template load<false>(tall.values[k], number, end), wide.template load<false>(wide.values[k], number, end);
  }
  Turn turn;
  for (int from = begin; from < end; from += kAhead * kDepth)
#pragma unroll
    for (int k = 0; k < kAhead; k++) {
      if (from + k * kDepth >= end) break;
      const int number = from + k * kDepth + first, next = number + kAhead * kDepth;
      if (number + kNumbers > end) tall.cut(tall.values[k], end - number), wide.cut(wide.values[k], end - number);
      wait_for(empty + turn.stage, turn.parity ^ 1);  // the first time it is
      char* to = stages + turn.stage * kStage + byte_of(lane, first);
      tall.template load<true>(tall.values[k], next, end, to, lane);
      wide.template load<true>(wide.values[k], next, end, to + kTall * kRowBytes, lane);
      show_to_products();
      warp_arrives(lane, full + turn.stage);
      turn.next();
    }
}

DEVICE void multiply_range(Sums& sum, int begin, int end, Stages stages, Counter* full, Counter* empty) {
  if (kMoves) keep_registers<REGISTERS_TO_MULTIPLY>();
  const int lane = threadIdx.x & 31, group = threadIdx.x / 128;
  Turn turn;
  for (int from = begin, last = 0; from < end; from += kDepth, last = turn.stage, turn.next()) {
    wait_for(full + turn.stage, turn.parity);
    const char* stage = stages + turn.stage * kStage;
    multiply_tile(sum, stage + group * kRowTile * kRowBytes, kPart, stage + kTall * kRowBytes, kPart);
    wait_for_products<1>();
    if (from > begin) warp_arrives(lane, empty + last);
  }
  wait_for_products<0>();
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int r = 0; r < 4; r++) hold(sum[n][r]);  // they were under way until now
}

DEVICE void write_sums(const Arguments& args, const Sums& sum, int tall0, int wide0) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  tall0 += 16 * warp + lane / 4, wide0 += lane % 4 * 2;
  const int talls = (int)args.tall.places - tall0, wides = (int)args.wide.places - wide0;  // from the lane's own first one on
  const long down = args.tall.stride, across = args.wide.stride;
  float* to = args.result + (blockIdx.y * args.E + blockIdx.z) * args.tall.places * args.wide.places + tall0 * down + wide0 * across;
#pragma unroll
  for (int n = 0; n < NT; n++, to += 8 * across) {
    hold(to);  // one address, and not one for each of them: the sums fill the registers
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        store_below(to + 8 * half * down + r * across, sum[n][2 * half + r], 8 * n + r, 8 * half < talls ? wides : 0);
  }
}
