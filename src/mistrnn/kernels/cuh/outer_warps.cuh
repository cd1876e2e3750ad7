// The gradient of outer.cuh, where every warp multiplies alone: tiles cut the tall operand into 16s and the wide one into 8s.
// What is read is read two chunks ahead.
#pragma once

constexpr int M = TILES_DOWN, N = TILES_ACROSS;                           // tiles of a warp
constexpr int kTall = 16 * M * WARPS_DOWN, kWide = 8 * N * WARPS_ACROSS;  // places of a block: numbers of each operand
constexpr int kMultiplying = WARPS_DOWN * WARPS_ACROSS;                   // warps
constexpr int kDepth = 16, kAhead = 2;                                    // of the sum, in a chunk, and chunks under way
// A stage holds, for each part, the four quarters of a chunk's depth, and in each, for every place, its four numbers. The
// quarters lie so far apart that no two lanes of a warp that multiplies meet in a bank.
constexpr int kQuarter = (kTall + kWide + 15) / 16 * 16 + 4, kPart = 4 * kQuarter, kStage = P * kPart;
constexpr int kTogether = M == 1 ? 4 : 2;  // tiles across whose products take turns: each waits for its last one
typedef uint2* Stages;
typedef float Sums[M][N][4];

// A warp that reads takes one quarter of each chunk, a lane every 32nd place of the wide operand, and of the tall one every
// 32nd in its upper half and the same in its lower half, because a tile is read by pairs of its rows: 8 of each half make
// one. What it holds of places that do not exist does not matter: nobody writes what comes of it.
template <int PLACES, bool TALL, bool DELAYS> struct Reader {
  static constexpr int kHalf = PLACES / 2, kLoads = TALL ? (kHalf + 31) / 32 * 2 : (PLACES + 31) / 32;
  Source<kLoads, DELAYS> source;
  float values[kAhead][kLoads][4];

  METHOD static constexpr int place_of(int n) { return TALL ? n / 2 * 32 + n % 2 * kHalf : 32 * n; }

  METHOD void begin(const Arguments& args, const Operand& operand, int place0, int lane) {
    source.begin(args, operand, place0 + lane, (int)operand.places, [](int n) { return place_of(n); });
#pragma unroll
    for (int k = 0; k < kAhead; k++)
#pragma unroll
      for (int n = 0; n < kLoads; n++)
#pragma unroll
        for (int r = 0; r < 4; r++) values[k][n][r] = 0;
  }
  METHOD void load(float (&values)[kLoads][4], int number, int end) {
    hold(source.step);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float* from = nullptr;
#pragma unroll
      for (int n = 0; n < kLoads; n++) {
        if (n < source.kDelays) from = source.find(n, number + r, end);
        load_below(values[n][r], from + (DELAYS ? 0 : place_of(n)), place_of(n), source.left);
      }
    }
  }
  METHOD static void store(float (&values)[kLoads][4], uint2* to, int lane) {
    constexpr int kRows = TALL ? 2 : 1;
#pragma unroll
    for (int n = 0; n < kLoads; n += kRows) {
      const int place = 32 * (n / kRows) + lane;
      if (place >= PLACES / kRows) break;
#pragma unroll
      for (int p = 0; p < P; p++) {
        unsigned low[kRows], high[kRows];
#pragma unroll
        for (int row = 0; row < kRows; row++) {
          float(&value)[4] = values[n + row];
          low[row] = rounded(value[0], value[1]), high[row] = rounded(value[2], value[3]);
          if (p == P - 1) continue;
          value[0] -= as_float(low[row] << 16), value[1] -= as_float(low[row] & 0xffff0000u);
          value[2] -= as_float(high[row] << 16), value[3] -= as_float(high[row] & 0xffff0000u);
        }
        if (TALL) ((uint4*)(to + p * kPart))[place] = {low[0], low[kRows - 1], high[0], high[kRows - 1]};
        else to[p * kPart + place] = {low[0], high[0]};
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

DEVICE void read_range(const Arguments& args, int tall0, int wide0, int begin, int end, Stages stages, Counter* full, Counter* empty) {
  const int lane = threadIdx.x & 31, quarter = (threadIdx.x >> 5) - kMultiplying;
  Reader<kTall, true, DELAYS_OF_TALL> tall;
  Reader<kWide, false, false> wide;
  tall.begin(args, args.tall, tall0, lane), wide.begin(args, args.wide, wide0, lane);
  Turn turn;
  // The first time round there is nothing to store yet.
  for (int from = begin - kAhead * kDepth; from < end; from += kAhead * kDepth)
#pragma unroll
    for (int k = 0; k < kAhead; k++) {
      const int number = from + k * kDepth + 4 * quarter, next = number + kAhead * kDepth;
      if (from >= begin && from + k * kDepth < end) {
        wait_for(empty + turn.stage, turn.parity ^ 1);  // the first time it is
        uint2* to = stages + turn.stage * kStage + quarter * kQuarter;
        if (number + 4 > end) tall.cut(tall.values[k], end - number), wide.cut(wide.values[k], end - number);
        tall.store(tall.values[k], to, lane), wide.store(wide.values[k], to + kTall, lane);
        warp_arrives(lane, full + turn.stage);
        turn.next();
      }
      tall.load(tall.values[k], next, end), wide.load(wide.values[k], next, end);
    }
}

DEVICE void multiply_range(Sums& sum, int begin, int end, Stages stages, Counter* full, Counter* empty) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  const uint4* of_tall = (const uint4*)(stages + c * kQuarter) + q + warp % WARPS_DOWN * 8 * M;
  const uint2* of_wide = stages + c * kQuarter + q + kTall + warp / WARPS_DOWN * 8 * N;
  Turn turn;
  for (int from = begin; from < end; from += kDepth, turn.next()) {
    wait_for(full + turn.stage, turn.parity);
    const int stage = turn.stage * kStage;
    uint4 a[M][P];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int p = 0; p < P; p++) a[m][p] = of_tall[(stage + p * kPart) / 2 + 8 * m];
#pragma unroll
    for (int n0 = 0; n0 < N; n0 += kTogether) {
      uint2 b[kTogether][P];
      float tile[M][kTogether][4] = {};
#pragma unroll
      for (int n = 0; n < kTogether && n0 + n < N; n++)
#pragma unroll
        for (int p = 0; p < P; p++) b[n][p] = of_wide[stage + p * kPart + 8 * (n0 + n)];
#pragma unroll
      for (int i = P - 1; i >= 0; i--)
#pragma unroll
        for (int j = P - 1 - i; j >= 0; j--)
#pragma unroll
          for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < kTogether && n0 + n < N; n++) multiply_add(P == 3 ? tile[m][n] : sum[m][n0 + n], a[m][i], b[n][j]);
      if (P == 3)  // tensor cores cut off what does not fit into a sum: a long one would shrink
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int n = 0; n < kTogether && n0 + n < N; n++)
#pragma unroll
            for (int r = 0; r < 4; r++) sum[m][n0 + n][r] += tile[m][n][r];
    }
    warp_arrives(lane, empty + turn.stage);
  }
}

DEVICE void write_sums(const Arguments& args, const Sums& sum, int tall0, int wide0) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2, c = lane & 3;
  tall0 += warp % WARPS_DOWN * 8 * M + q, wide0 += warp / WARPS_DOWN * 8 * N + 2 * c;
  const int talls = (int)args.tall.places - tall0, wides = (int)args.wide.places - wide0;  // from the lane's own first one on
  const long down = args.tall.stride, across = args.wide.stride;
  float* to = args.result + (blockIdx.y * args.E + blockIdx.z) * args.tall.places * args.wide.places + tall0 * down + wide0 * across;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int m = 0; m < M; m++) {
      const int row = half * kTall / 2 + 8 * m, there = row < talls ? wides : 0;
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) store_below(to + row * down + (8 * n + r) * across, sum[m][n][2 * half + r], 8 * n + r, there);
    }
}
