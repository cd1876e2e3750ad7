// The gradient of wgrad.cuh, where every warp multiplies alone: tiles cut the tall operand into 16s and the wide one into 8s.
// What is read is read two chunks ahead.
#pragma once

constexpr int M = TILES_M, N = TILES_N;                           // tiles of a warp
constexpr int kBlockM = 16 * M * WARPS_M, kBlockN = 8 * N * WARPS_N;  // places of a block: numbers of each operand
constexpr int kConsumerWarps = WARPS_M * WARPS_N;                   // warps
constexpr int kChunk = 16, kPrefetch = 2;                                    // of the sum, in a chunk, and chunks under way
// A stage holds, for each part, the four quarters of a chunk's depth, and in each, for every place, its four numbers. The
// quarters lie so far apart that no two lanes of a warp that multiplies meet in a bank.
constexpr int kQuarter = (kBlockM + kBlockN + 15) / 16 * 16 + 4, kSplitStride = 4 * kQuarter, kStage = P * kSplitStride;
constexpr int kInterleave = M == 1 ? 4 : 2;  // tiles across whose products take turns: each waits for its last one
typedef uint2* Stages;
typedef float Accumulators[M][N][4];

// A warp that reads takes one quarter of each chunk, a lane every 32nd place of the wide operand, and of the tall one every
// 32nd in its upper half and the same in its lower half, because a tile is read by pairs of its rows: 8 of each half make
// one. What it holds of places that do not exist does not matter: nobody writes what comes of it.
template <int COLUMNS, bool IS_A, bool DELAYS> struct Reader {
  static constexpr int kHalf = COLUMNS / 2, kLoads = IS_A ? (kHalf + 31) / 32 * 2 : (COLUMNS + 31) / 32;
  Source<kLoads, DELAYS> source;
  float values[kPrefetch][kLoads][4];

  METHOD static constexpr int column_of(int n) { return IS_A ? n / 2 * 32 + n % 2 * kHalf : 32 * n; }

  METHOD void begin(const WgradArguments& args, const Operand& operand, int column0, int lane) {
    source.begin(args, operand, column0 + lane, (int)operand.columns, [](int n) { return column_of(n); });
#pragma unroll
    for (int k = 0; k < kPrefetch; k++)
#pragma unroll
      for (int n = 0; n < kLoads; n++)
#pragma unroll
        for (int r = 0; r < 4; r++) values[k][n][r] = 0;
  }
  METHOD void load(float (&values)[kLoads][4], int number, int end) {
    make_opaque(source.step);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float* from = nullptr;
#pragma unroll
      for (int n = 0; n < kLoads; n++) {
        if (n < source.kDelays) from = source.find(n, number + r, end);
        load_below(values[n][r], from + (DELAYS ? 0 : column_of(n)), column_of(n), source.left);
      }
    }
  }
  METHOD static void store(float (&values)[kLoads][4], uint2* to, int lane) {
    constexpr int kRows = IS_A ? 2 : 1;
#pragma unroll
    for (int n = 0; n < kLoads; n += kRows) {
      const int place = 32 * (n / kRows) + lane;
      if (place >= COLUMNS / kRows) break;
#pragma unroll
      for (int p = 0; p < P; p++) {
        unsigned low[kRows], high[kRows];
#pragma unroll
        for (int row = 0; row < kRows; row++) {
          float(&value)[4] = values[n + row];
          low[row] = to_bf16(value[0], value[1]), high[row] = to_bf16(value[2], value[3]);
          if (p == P - 1) continue;
          value[0] -= as_float(low[row] << 16), value[1] -= as_float(low[row] & 0xffff0000u);
          value[2] -= as_float(high[row] << 16), value[3] -= as_float(high[row] & 0xffff0000u);
        }
        if (IS_A) ((uint4*)(to + p * kSplitStride))[place] = {low[0], low[kRows - 1], high[0], high[kRows - 1]};
        else to[p * kSplitStride + place] = {low[0], high[0]};
      }
    }
  }
  // Forget all but so many of the four.
  METHOD static void cut(float (&values)[kLoads][4], int there) {
#pragma unroll
    for (int n = 0; n < kLoads; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) values[n][r] = r < there ? values[n][r] : 0;
  }
};

DEVICE void produce(const WgradArguments& args, int m0, int n0, int begin, int end, Stages stages, Mbarrier* full, Mbarrier* empty) {
  const int lane = threadIdx.x & 31, quarter = (threadIdx.x >> 5) - kConsumerWarps;
  Reader<kBlockM, true, DELAYED_A> reader_a;
  Reader<kBlockN, false, false> reader_b;
  reader_a.begin(args, args.a, m0, lane), reader_b.begin(args, args.b, n0, lane);
  PipelineState pipe;
  // The first time round there is nothing to store yet.
  for (int from = begin - kPrefetch * kChunk; from < end; from += kPrefetch * kChunk)
#pragma unroll
    for (int k = 0; k < kPrefetch; k++) {
      const int number = from + k * kChunk + 4 * quarter, next = number + kPrefetch * kChunk;
      if (from >= begin && from + k * kChunk < end) {
        mbarrier_wait(empty + pipe.stage, pipe.parity ^ 1);  // the first time it is
        uint2* to = stages + pipe.stage * kStage + quarter * kQuarter;
        if (number + 4 > end) reader_a.cut(reader_a.values[k], end - number), reader_b.cut(reader_b.values[k], end - number);
        reader_a.store(reader_a.values[k], to, lane), reader_b.store(reader_b.values[k], to + kBlockM, lane);
        warp_arrive(lane, full + pipe.stage);
        pipe.advance();
      }
      reader_a.load(reader_a.values[k], next, end), reader_b.load(reader_b.values[k], next, end);
    }
}

DEVICE void consume(Accumulators& sum, int begin, int end, Stages stages, Mbarrier* full, Mbarrier* empty) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  const uint4* of_a = (const uint4*)(stages + c * kQuarter) + q + warp % WARPS_M * 8 * M;
  const uint2* of_b = stages + c * kQuarter + q + kBlockM + warp / WARPS_M * 8 * N;
  PipelineState pipe;
  for (int from = begin; from < end; from += kChunk, pipe.advance()) {
    mbarrier_wait(full + pipe.stage, pipe.parity);
    const int stage = pipe.stage * kStage;
    uint4 a[M][P];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int p = 0; p < P; p++) a[m][p] = of_a[(stage + p * kSplitStride) / 2 + 8 * m];
#pragma unroll
    for (int n0 = 0; n0 < N; n0 += kInterleave) {
      uint2 b[kInterleave][P];
      float tile[M][kInterleave][4] = {};
#pragma unroll
      for (int n = 0; n < kInterleave && n0 + n < N; n++)
#pragma unroll
        for (int p = 0; p < P; p++) b[n][p] = of_b[stage + p * kSplitStride + 8 * (n0 + n)];
#pragma unroll
      for (int i = P - 1; i >= 0; i--)
#pragma unroll
        for (int j = P - 1 - i; j >= 0; j--)
#pragma unroll
          for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < kInterleave && n0 + n < N; n++) mma(P == 3 ? tile[m][n] : sum[m][n0 + n], a[m][i], b[n][j]);
      if (P == 3)  // tensor cores cut off what does not fit into a sum: a long one would shrink
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int n = 0; n < kInterleave && n0 + n < N; n++)
#pragma unroll
            for (int r = 0; r < 4; r++) sum[m][n0 + n][r] += tile[m][n][r];
    }
    warp_arrive(lane, empty + pipe.stage);
  }
}

DEVICE void epilogue(const WgradArguments& args, const Accumulators& sum, int m0, int n0) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  m0 += warp % WARPS_M * 8 * M + q, n0 += warp / WARPS_M * 8 * N + 2 * c;
  const int rows_left = (int)args.a.columns - m0, columns_left = (int)args.b.columns - n0;  // from the lane's own first one on
  const long down = args.a.result_stride, across = args.b.result_stride;
  float* to = args.result + (blockIdx.y * args.E + blockIdx.z) * args.a.columns * args.b.columns + m0 * down + n0 * across;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int m = 0; m < M; m++) {
      const int row = half * kBlockM / 2 + 8 * m, there = row < rows_left ? columns_left : 0;
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) store_below(to + row * down + (8 * n + r) * across, sum[m][n][2 * half + r], 8 * n + r, there);
    }
}
