// The gradient of wgrad.cuh, where four warps multiply as one: on GPUs of the generation of the H100. A group of four warps
// has 64 places of the tall operand, and all groups of a block have the same 8 NT of the wide one.
//
// A stage holds, for each part, a row of 32 numbers of the sum for every place: those of the tall operand, then those of the
// wide one, as warpgroup.cuh has them.
#pragma once

#include "kernels/cuda/common/warpgroup.cuh"

constexpr int NT = TILES_N;
constexpr int kBlockM = kRowTile * WARPGROUPS, kBlockN = 8 * NT;  // places of a block: numbers of each operand
constexpr int kConsumerWarps = 4 * WARPGROUPS;                  // warps
constexpr int kChunk = kDepthTile, kPrefetch = PREFETCH_CHUNKS;        // of the sum, in a chunk, and chunks under way
constexpr int kNumbers = kChunk / kProducerWarps;               // of a chunk, for each warp that reads
constexpr int kSplitStride = (kBlockM + kBlockN) * kRowBytes, kStage = P * kSplitStride;
constexpr bool kMovesRegisters = PRODUCER_REGISTERS > 0;            // registers, from warps that multiply to those that read
static_assert(kNumbers == 8, "they are 16 bytes of a row");
static_assert(STAGES > 1, "a stage is given back when the products after it are under way");
typedef char* Stages;
typedef float Accumulators[NT][4];

// A warp that reads takes one quarter of each chunk, a lane every 32nd place. What it holds of places that do not exist does
// not matter: nobody writes what comes of it.
template <int COLUMNS, bool DELAYS> struct Reader {
  static constexpr int kLoads = (COLUMNS + 31) / 32;
  Source<kLoads, DELAYS> source;
  float values[kPrefetch][kLoads][kNumbers];

  METHOD void begin(const WgradArguments& args, const Operand& operand, int column0, int lane) {
    const int end = column0 + COLUMNS < (int)operand.columns ? column0 + COLUMNS : (int)operand.columns;
    source.begin(args, operand, column0 + lane, end, [](int n) { return 32 * n; });
#pragma unroll
    for (int k = 0; k < kPrefetch; k++)
#pragma unroll
      for (int n = 0; n < kLoads; n++)
#pragma unroll
        for (int r = 0; r < kNumbers; r++) values[k][n][r] = 0;
  }
  // Go through all places. With STORE, each place's numbers go to a stage before others come in their stead: so the first
  // are under way while the last are still taken apart.
  template <bool STORE> METHOD void load(float (&values)[kLoads][kNumbers], int number, int end, char* to = nullptr, int lane = 0) {
    const float* from[kNumbers];
    make_opaque(source.step);
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
      if (STORE && 32 * n + lane < COLUMNS) store(values[n], to + 32 * n * kRowBytes);
#pragma unroll
      for (int r = 0; r < kNumbers; r++) {
        if (n < source.kDelays) from[r] = source.find(n, number + r, end);
        load_below(values[n][r], from[r] + (DELAYS ? 0 : 32 * n), 32 * n, source.left);
      }
    }
  }
  METHOD static void store(float (&value)[kNumbers], char* to) {
#pragma unroll
    for (int p = 0; p < P - 1; p++) store_for_wgmma(to + p * kSplitStride, next_split(value));
    store_for_wgmma(to + (P - 1) * kSplitStride, to_bf16(value));
  }
  // Forget all but so many of a place's numbers.
  METHOD static void cut(float (&values)[kLoads][kNumbers], int there) {
#pragma unroll
    for (int n = 0; n < kLoads; n++)
#pragma unroll
      for (int r = 0; r < kNumbers; r++) values[n][r] = r < there ? values[n][r] : 0;
  }
};

DEVICE void produce(const WgradArguments& args, int m0, int n0, int begin, int end, Stages stages, Mbarrier* full, Mbarrier* empty) {
  if (kMovesRegisters) setmaxnreg_inc<PRODUCER_REGISTERS>();
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) - kConsumerWarps, first = kNumbers * warp;  // number of a chunk
  Reader<kBlockM, DELAYED_A> reader_a;
  Reader<kBlockN, false> reader_b;
  reader_a.begin(args, args.a, m0, lane), reader_b.begin(args, args.b, n0, lane);
#pragma unroll
  for (int k = 0; k < kPrefetch; k++) {
    const int number = begin + k * kChunk + first;
    reader_a.template load<false>(reader_a.values[k], number, end), reader_b.template load<false>(reader_b.values[k], number, end);
  }
  PipelineState pipe;
  for (int from = begin; from < end; from += kPrefetch * kChunk)
#pragma unroll
    for (int k = 0; k < kPrefetch; k++) {
      if (from + k * kChunk >= end) break;
      const int number = from + k * kChunk + first, next = number + kPrefetch * kChunk;
      if (number + kNumbers > end) reader_a.cut(reader_a.values[k], end - number), reader_b.cut(reader_b.values[k], end - number);
      mbarrier_wait(empty + pipe.stage, pipe.parity ^ 1);  // the first time it is
      char* to = stages + pipe.stage * kStage + byte_of(lane, first);
      reader_a.template load<true>(reader_a.values[k], next, end, to, lane);
      reader_b.template load<true>(reader_b.values[k], next, end, to + kBlockM * kRowBytes, lane);
      fence_proxy_async();
      warp_arrive(lane, full + pipe.stage);
      pipe.advance();
    }
}

DEVICE void consume(Accumulators& sum, int begin, int end, Stages stages, Mbarrier* full, Mbarrier* empty) {
  if (kMovesRegisters) setmaxnreg_dec<CONSUMER_REGISTERS>();
  const int lane = threadIdx.x & 31, group = threadIdx.x / 128;
  PipelineState pipe;
  for (int from = begin, last = 0; from < end; from += kChunk, last = pipe.stage, pipe.advance()) {
    mbarrier_wait(full + pipe.stage, pipe.parity);
    const char* stage = stages + pipe.stage * kStage;
    wgmma_tile(sum, stage + group * kRowTile * kRowBytes, kSplitStride, stage + kBlockM * kRowBytes, kSplitStride);
    wgmma_wait<1>();
    if (from > begin) warp_arrive(lane, empty + last);
  }
  wgmma_wait<0>();
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int r = 0; r < 4; r++) make_opaque(sum[n][r]);  // they were under way until now
}

DEVICE void epilogue(const WgradArguments& args, const Accumulators& sum, int m0, int n0) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  m0 += 16 * warp + lane / 4, n0 += lane % 4 * 2;
  const int rows_left = (int)args.a.columns - m0, columns_left = (int)args.b.columns - n0;  // from the lane's own first one on
  const long down = args.a.result_stride, across = args.b.result_stride;
  float* to = args.result + (blockIdx.y * args.E + blockIdx.z) * args.a.columns * args.b.columns + m0 * down + n0 * across;
#pragma unroll
  for (int n = 0; n < NT; n++, to += 8 * across) {
    make_opaque(to);  // one address, and not one for each of them: the sums fill the registers
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        store_below(to + 8 * half * down + r * across, sum[n][2 * half + r], 8 * n + r, 8 * half < rows_left ? columns_left : 0);
  }
}
