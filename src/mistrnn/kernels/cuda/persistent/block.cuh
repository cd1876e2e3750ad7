// A block of threads that takes some sequences of one trial through all steps: what a cell sees of it.
//
// A block owns ROWS sequences: eight, a multiple, or one alone. A cluster of CLUSTER blocks shares the units among its blocks;
// each computes its own ones for the same sequences and tells the others. A warp has 16 units (STACK times), and a thread has
// just those numbers of a tile that the tensor cores give it: two units of two sequences, so that what a product gives is
// where the cell needs it. Value i of a thread belongs to
//
//     sequence  2 (lane % 4) + i % 2,  and 8 more for every four values of a tile
//     unit      lane / 4 + 8 (i / 2 % 2)
//
// A thread keeps the same units and sequences at all steps: what it has written itself it may read again at any time. Its
// records of past steps lie one after the other in a stream of its warp, 16 bytes a thread, so that a state d steps ago
// stands at a distance that is known when the kernel is compiled.
//
// With ROWS 1 a block has one sequence and leaves the tensor cores alone: a thread has one unit of it, lane / 4 + 8 (lane % 2),
// and lanes 2 and 3 of four do the same as 0 and 1. Its records lie where a block of eight sequences would have them, because
// the run backwards is one.
//
// With RANGES > 1 there are as many times WARPS warps: the first WARPS have the units, the others only take their ranges of
// what the products add up.
//
// "Step" counts in the order of the run, "time" in that of the input.
#pragma once

#include "kernels/cuda/persistent/arguments.cuh"

constexpr int C = CLUSTER, R = SEQUENCES, W = WARPS, TW = UNIT_TILES, KS = SPLIT_K;
constexpr bool kLengths = HAS_LENGTHS, kReset = HAS_RESET, kNorm = HAS_NORM, kDropout = HAS_DROPOUT;
constexpr bool kReverse = REVERSE, kProbe = PROBE;
constexpr bool kMasks = ZONEOUT == 1;    // zoneout by masks
constexpr bool kMixture = ZONEOUT == 2;  // and in evaluation, by its probability
constexpr bool kSingleSequence = R == 1;          // one sequence, multiplied without the tensor cores
constexpr int NT = kSingleSequence ? 1 : R / 8;   // tiles along the sequences
constexpr int kUnits = 16 * W * TW;      // of a block; the last block of a cluster may have fewer in truth
constexpr int kSavedValues = 4 * NT * TW, kSavedSequences = 2 * NT;  // numbers and sequences of a lane in a record
constexpr int kValues = kSingleSequence ? TW : kSavedValues, kRows = kSingleSequence ? 1 : kSavedSequences;  // ... and of a thread
static_assert(!kSingleSequence || (TW == 1 && P > 0 && !BACKWARD), "a sequence alone: forwards, a unit a thread");
constexpr int kDelays = D > 0 ? D : 1, kSlots = (kDelays + 7) / 8;
constexpr int kUStride = U_STRIDE;        // of a sequence in u, in bytes
constexpr int kTileBytes = P > 0 && !kSingleSequence ? 32 * P : 16 * (int)sizeof(Real);  // of a sequence in a tile of u
constexpr int kBuffers = BUFFERS;        // of u: with two, others may still read the last one
constexpr int kSoftmaxWidth = SOFTMAX_WIDTH;
constexpr int kReduceWidth = REDUCE_WIDTH;     // numbers of a sequence that are added up over the units at once, at most
constexpr int kSavedVectors = SAVED_VECTORS;

#define EACH_VALUE _Pragma("unroll") for (int i = 0; i < kValues; i++)
#define EACH_ROW _Pragma("unroll") for (int j = 0; j < kRows; j++)
#define EACH_DELAY _Pragma("unroll") for (int d = 0; d < D; d++)
// The delays that this thread has among the eight lanes of its sequences: d, and d + 8 if there are so many.
#define EACH_SLOT _Pragma("unroll") for (int slot = 0, d = (threadIdx.x & 31) >> 2; slot < kSlots; slot++, d += 8)

typedef Real Values[kValues];
typedef Real Rows[kRows];

DEVICE constexpr int row_of(int i) { return i / 4 % NT * 2 + i % 2; }      // which of the thread's sequences value i is of
DEVICE constexpr int unit_of(int i) { return i / (4 * NT) * 16 + i / 2 % 2 * 8; }  // from the thread's first unit to its own
DEVICE constexpr int sequence_of(int j) { return j / 2 * 8 + j % 2; }      // from the thread's first sequence to its j-th

// All values of a thread, which follow each other.
DEVICE void load_all(const float* from, float (&v)[kValues]) {
  if (kSingleSequence) v[0] = *from;
  else
#pragma unroll
  for (int i = 0; i < kValues; i += 4) {
    const float4 four = *(const float4*)(from + i);
    v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
  }
}
DEVICE void store_all(float* to, const float (&v)[kValues]) {
  if (kSingleSequence) *to = v[0];
  else
#pragma unroll
  for (int i = 0; i < kValues; i += 4) *(float4*)(to + i) = {v[i], v[i + 1], v[i + 2], v[i + 3]};
}
DEVICE void load_all(const double* from, double (&v)[kValues]) { EACH_VALUE v[i] = from[i]; }
DEVICE void store_all(double* to, const double (&v)[kValues]) { EACH_VALUE to[i] = v[i]; }

// Load and store `count` vectors, several at once: memory takes long to answer.
template <class Load, class Store> DEVICE void in_batches(int count, Load load, Store store) {
  constexpr int kAtOnce = 8;
  for (int first = 0; first < count; first += kAtOnce) {
    Values batch[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; n++) if (first + n < count) load(first + n, batch[n]);
#pragma unroll
    for (int n = 0; n < kAtOnce; n++) if (first + n < count) store(first + n, batch[n]);
  }
}

struct Block {
  static constexpr int kSavedStep = kSavedVectors * 32 * kSavedValues;      // from one step to the next in a warp's stream
  static constexpr int kSavedLagStep = SAVED_LAG_VECTORS * 32 * kSavedSequences * kSlots;  // ... and in that of the delays
  static constexpr int kPrefetchSteps = 4;  // steps ahead of which memory is told

  const Arguments& args;
  char* u;       // what a product reads, in parts: [buffers, R, kStride]
  Real* reduce_buffer;  // [2, C W, 32, kSumWidth]
  Real* softmax_buffer;  // [2, C W, 32, kExtraWidth]: what each warp's units give to the softmax of MIST, or to its gradient
  Real* split_k_buffer;  // [KS - 1, W, tall, 32, kValues]: products over the later ranges
  bool has_units;
  int cta, warp, lane, unit, sequence;  // the thread's first unit and sequence
  int place;     // of the thread's first number in a vector of its warp's records
  long e, row;
  int exists;    // bit i: value i is one; after them, whether the sequences are
  char* u_lane;   // this lane's first part of u
  int length[kLengths ? kRows : 1];
  int buffer = 0, reduce_index = 0;
  Mbarrier* mbarriers;  // of what comes from other blocks: for each buffer of u and of totals
  int parities = 0, sent = 0;
  Rows x, next_x;
  Real *saved_stream, *saved_lag_stream;  // this thread's records, at the first step

  METHOD Block(const Arguments& args) : args(args) {
    u = shared_memory();
    reduce_buffer = (Real*)(u + kBuffers * R * kUStride);
    softmax_buffer = reduce_buffer + 2 * C * W * 32 * kReduceWidth;
    split_k_buffer = softmax_buffer + 2 * C * W * 32 * kSoftmaxWidth;
    mbarriers = (Mbarrier*)(u + WEIGHTS_OFFSET) - 4;
    if (C > 1 && threadIdx.x == 0)
      for (int n = 0; n < 4; n++) mbarrier_init(mbarriers + n, W);
    cta = C > 1 ? cluster_rank() : 0;
    e = blockIdx.y;
    warp = threadIdx.x / 32 % W, lane = threadIdx.x & 31;
    has_units = KS == 1 || threadIdx.x < W * 32;
    const int block = blockIdx.x / C;
    unit = cta * kUnits + warp * 16 * TW + (lane >> 2) + (kSingleSequence ? (lane & 1) * 8 : 0);
    sequence = kSingleSequence ? 0 : 2 * (lane & 3);
    row = (long)block * R + sequence;
    exists = 0;
    EACH_VALUE if (unit + unit_of(i) < H && row + sequence_of(row_of(i)) < args.B) exists |= 1 << i;
    EACH_ROW if (row + sequence_of(j) < args.B) exists |= 1 << (kValues + j);
    make_opaque(exists);
    EACH_ROW if (kLengths) {  // never more than there are, whatever the caller says: memory would be overwritten
      const long own = in_batch(j) ? args.lengths[e * args.lengths_trial + row + sequence_of(j)] : 0;
      length[kLengths ? j : 0] = own < 0 ? 0 : own < args.T ? (int)own : (int)args.T;
    }
    const int together = kSingleSequence ? 8 : 1, nth = block % together;  // blocks whose records lie together
    Real* saved = args.saved + e * args.saved_trial + block / together * args.saved_block;
    const long slots = args.T + kInitialStates;
    u_lane = kSingleSequence ? u + (lane & 3) * 16 : row_of_u(lane >> 2) + (lane & 3) * (8 * P);  // of the first range
    const int of_lane = kSingleSequence ? (lane & ~3) + nth / 2 : lane;  // which lane of a tile would write the record
    place = of_lane * kSavedValues + (kSingleSequence ? (lane & 1) * 2 + nth % 2 : 0);
    saved_stream = saved + ((cta * W + warp) * slots + kInitialStates) * kSavedStep + place;
    saved_lag_stream = saved + C * W * slots * kSavedStep + of_lane * (kSavedSequences * kSlots) + nth % 2;
    make_opaque(saved_stream), make_opaque(saved_lag_stream);
    const int first = BACKWARD ? (int)args.T - 1 : 0;
    output_now = args.output + e * args.T * args.B * H + at(first, 0, H);
    gradient_now = args.dz + e * args.T * args.B * kGradientStride + at(first, 0, kGradientStride);
    mixed_now = args.mixed + e * args.T * args.B * MIXED_STRIDE + at(first, 0, MIXED_STRIDE);
    make_opaque(output_now), make_opaque(gradient_now), make_opaque(mixed_now);
    projected_now = args.projected + e * args.T * args.B * kG + at(0, 0, kG);
    if (!kFusedInput && !BACKWARD) make_opaque(projected_now);
    x_now = args.x + e * args.x_trial + first * args.x_time + row * args.x_sequence;
    d_output_now = args.d_output + e * args.d_output_trial + first * args.d_output_time + row * args.d_output_sequence + unit;
    make_opaque(x_now), make_opaque(d_output_now);
    if (kFusedInput && !BACKWARD) read_x(0, next_x);
    for (int n = threadIdx.x; n < kBuffers * R * kUStride / 4; n += KS * W * 32) ((unsigned*)u)[n] = 0;
  }
  // Places of the thread's first number at the step that comes next, in tensors that it goes through once. With kReverse,
  // x, projected, output and d_output are found by their time instead.
  Real *output_now, *gradient_now, *mixed_now;
  const Real *x_now, *d_output_now;  // of the first sequence
  const Real* projected_now;

  METHOD void store(Real* now, int width, const Values& v) const {
    EACH_VALUE if (has(i)) {
      Real* to = now + sequence_of(row_of(i)) * width + unit_of(i);
      if (BACKWARD) *to = v[i];
      else store_streaming(to, v[i]);  // memory has enough to do with the states that will be read again
    }
  }
  static constexpr int kInitialStates = INITIAL_STATES;  // places in a stream for what was before the first step

  METHOD bool has(int i) const { return exists >> i & 1; }
  METHOD bool in_batch(int j) const { return exists >> (kValues + j) & 1; }
  METHOD int end(int j) const { return kLengths ? length[kLengths ? j : 0] : (int)args.T; }
  METHOD bool active(int s, int j) const { return !kLengths || s < end(j); }
  METHOD bool is_active(int s, int i) const { return active(s, row_of(i)); }
  METHOD int time(int s, int j) const { return kReverse && active(s, j) ? end(j) - 1 - s : s; }

  // Where value i stands in a tensor [T, B, width] of this trial that the kernel or its caller made, at step s (or time t).
  METHOD long at(int t, int i, int width) const {
    return ((long)t * args.B + row) * width + unit + (sequence_of(row_of(i)) * width + unit_of(i));
  }
  METHOD long at_time(int s, int i, int width) const { return at(time(s, row_of(i)), i, width); }

  // The record of step s: `part` says which of its vectors.
  METHOD Real* saved(int s, int part) const { return saved_stream + (long)s * kSavedStep + part * 32 * kSavedValues; }
  METHOD Real* saved_lags(int s, int part) const {
    return saved_lag_stream + (long)s * kSavedLagStep + part * 32 * kSavedSequences * kSlots;
  }

  METHOD int origin(int s, int j) const {
    return in_batch(j) ? args.origin[e * args.origin_trial + (long)s * args.B + row + sequence_of(j)] : -2 * M;
  }
  // Whether step s of the sequence may read the state d steps before; s == its end asks for what is handed on.
  METHOD bool can_read(int s, int d, int j) const {
    if (!kReset || end(j) == 0) return true;
    return s - d >= origin(s < end(j) ? s : end(j) - 1, j);
  }

  // Read the input of step s; steps are asked for in the order of the run, or backwards from the last one. Forwards it was
  // asked for a step before, because all other work waits for it.
  METHOD void load_x(int s) {
    if (!kFusedInput) return;
    if (!BACKWARD) EACH_ROW x[j] = next_x[j];
    read_x(BACKWARD ? s : s + 1, BACKWARD ? x : next_x);
  }
  METHOD void read_x(int s, Rows& to) {
    EACH_ROW {
      to[j] = 0;
      const bool there = in_batch(j) && s >= 0 && s < (int)args.T && active(s, j);
      if (there) to[j] = kReverse ? args.x[e * args.x_trial + time(s, j) * args.x_time + (row + sequence_of(j)) * args.x_sequence]
                                  : x_now[sequence_of(j) * args.x_sequence];
    }
    x_now += BACKWARD ? -args.x_time : args.x_time;
  }

  // Where the products of several inputs stand for the thread's j-th sequence at step s, and its first unit.
  METHOD const Real* projected_at(int s, int j) const {
    if (!kReverse) return projected_now + sequence_of(j) * kG;
    return args.projected + ((e * args.T + time(s, j)) * args.B + row + sequence_of(j)) * kG + unit;
  }
  // Tell memory of what the warp will need of them a few steps later, from one row of the parameters on: 32 bytes a lane.
  METHOD void prefetch_projected(int s, int first_row) const {
    constexpr int kPiece = 32 / (int)sizeof(Real), kFragments = 16 * TW / kPiece;
    if (kReverse || s + kPrefetchSteps >= (int)args.T) return;
    const int first = cta * kUnits + warp * 16 * TW;  // unit
    const Real* from = projected_now - sequence * kG - (unit - first) + kPrefetchSteps * args.B * kG + first_row;
#pragma unroll
    for (int n = lane; n < R * kFragments; n += 32) {
      const int nth = n / kFragments, piece = n % kFragments * kPiece;
      if (blockIdx.x / C * R + nth < args.B && first + piece < H) prefetch(from + nth * kG + piece);
    }
  }

  // Read or write a state [M, B, H] of this trial.
  METHOD void load_state(const Real* state, long trial, int m, Values& v) const {
    EACH_VALUE v[i] = has(i) ? state[e * trial + at(m, i, H)] : Real(0);
  }
  METHOD void store_state(Real* state, int memory, int m, const Values& v) const {
    EACH_VALUE if (has(i)) state[e * memory * args.B * H + at(m, i, H)] = v[i];
  }

  // Write this thread's places of vector `block` of u, for every block of the cluster. Places 2 n and 2 n + 1 of a tile are
  // units n and n + 8. A sequence has its row of u where neither writing nor reading meets in the same bank.
  METHOD char* row_of_u(int n) const { return u + (buffer * R + (n ^ (n >> 1 & 1))) * kUStride; }
  METHOD void publish(int block, const Values& v) {
    const int first = (block * C + cta) * W * TW + warp * TW;  // tile
#if SEQUENCES == 1
    Real* to = (Real*)(row_of_u(0) + first * kTileBytes) + (lane >> 2) * 2 + (lane & 1);
    if ((lane & 2) == 0) broadcast(to, v[0], mbarriers + buffer);
    sent += kTileBytes;
#else
#pragma unroll
    for (int i = 0; i < kValues; i += 4)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        char* to = row_of_u(i / 4 % NT * 8 + sequence + j) + (first + i / (4 * NT)) * kTileBytes;
        const int n = lane >> 2;
        const Real low = v[i + j], high = v[i + 2 + j];
#if SPLITS == 0
        ((Real*)to)[2 * n] = low, ((Real*)to)[2 * n + 1] = high;
#else
        float left[2] = {(float)low, (float)high};
#pragma unroll
        for (int p = 0; p < P; p++) {
          const unsigned part = to_bf16(left[0], left[1]);
          left[0] -= as_float(part << 16), left[1] -= as_float(part & 0xffff0000u);
          *(unsigned*)(to + n / 2 * (8 * P) + p * 8 + n % 2 * 4) = part;
        }
#endif
      }
    if (C > 1) {  // 16 bytes a lane, once the warp's tiles are together
      constexpr int chunks = TW * kTileBytes / 16;  // of a sequence
      sync_warp();
#pragma unroll
      for (int n = lane; n < R * chunks; n += 32) {
        uint4* place = (uint4*)(row_of_u(n / chunks) + first * kTileBytes) + n % chunks;
        const uint4 chunk = *place;
#pragma unroll
        for (int other = 1; other < C; other++) store_async(place, (cta + other) % C, chunk, mbarriers + buffer);
      }
      sent += R * chunks * 16;
    }
#endif
  }
  // A barrier in two parts: a warp has published all that it has for this product, and everybody has. What a thread writes
  // for itself or for later kernels comes between them.
  METHOD void arrive() {
    if (C > 1) arrive_at(mbarriers + buffer, sent), sent = 0;
  }
  METHOD void wait() {
    if (C > 1) wait_at(buffer);
    else sync_block();
  }
  // The other blocks' warps send as many bytes as this one did.
  METHOD void arrive_at(Mbarrier* mbarrier, int bytes) const { warp_arrive(lane, mbarrier, (C - 1) * bytes); }
  METHOD void wait_at(int which) {
    mbarrier_wait(mbarriers + which, parities >> which & 1);
    parities ^= 1 << which;
  }
  METHOD void sync() const {
    if (C > 1) sync_cluster();
    else sync_block();
  }
  METHOD void next_buffer() { buffer = kBuffers - 1 - buffer; }

  // Sums over all units of each sequence; every thread of the cluster must come here. Among the eight lanes that have a
  // sequence's units first, then among the warps.
  static METHOD Real sum_over_lanes(Real v) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) v += shuffle_xor(v, distance);
    return v;
  }
  // Write a number here and for all other blocks.
  METHOD void broadcast(Real* place, Real v, Mbarrier* mbarrier) const {
    *place = v;
#pragma unroll
    for (int other = 1; other < C; other++) store_async(place, (cta + other) % C, v, mbarrier);
  }
  template <int N> METHOD void sum_over_warps(Real (&v)[N], int givers) {
    const bool gives = lane < givers;
    Real* to = reduce_buffer + reduce_index * (C * W * 32 * kReduceWidth);
    Real* place = to + ((cta * W + warp) * 32 + lane) * kReduceWidth;
    if (gives)
#pragma unroll
      for (int n = 0; n < N; n++) broadcast(place + n, v[n], mbarriers + 2 + reduce_index);
    if (C > 1) arrive_at(mbarriers + 2 + reduce_index, givers * N * (int)sizeof(Real));
    if (C > 1) wait_at(2 + reduce_index);
    else sync_block();
    reduce_index ^= 1;
#pragma unroll
    for (int n = 0; n < N; n++) v[n] = 0;
    for (int k = 0; k < C * W; k++)
#pragma unroll
      for (int n = 0; n < N; n++) v[n] += to[(k * 32 + (gives ? lane : lane & 3)) * kReduceWidth + n];
  }
  template <int N> METHOD void sum_over_units(Real (&v)[N][kRows]) {
    Real flat[N * kRows];
#pragma unroll
    for (int n = 0; n < N * kRows; n++) {
      flat[n] = sum_over_lanes(v[n / kRows][n % kRows]);
      if (kSingleSequence) flat[n] += shuffle_xor(flat[n], 1);
    }
    sum_over_warps(flat, 4);
#pragma unroll
    for (int n = 0; n < N * kRows; n++) v[n / kRows][n % kRows] = shuffle(flat[n], lane & 3);
  }
  // ... of a warp, for the delays, each to the lane that has it.
  METHOD void reduce_to_owners(Real (&v)[kDelays][kRows], Real (&own)[kSlots][kRows]) const {
    const int mine = lane >> 2;
#pragma unroll
    for (int slot = 0; slot < kSlots; slot++)
      EACH_ROW {
        Real part[8];
#pragma unroll
        for (int n = 0; n < 8; n++) part[n] = slot * 8 + n < D ? v[slot * 8 + n < D ? slot * 8 + n : 0][j] : Real(0);
#pragma unroll
        for (int width = 4; width > 0; width /= 2)  // halve the delays that a lane has, and the lanes that have them
#pragma unroll
          for (int n = 0; n < width; n++) {
            const bool upper = mine & width;
            const Real given = upper ? part[n] : part[n + width], is_kept = upper ? part[n + width] : part[n];
            part[n] = is_kept + shuffle_xor(given, width * 4);
          }
        own[slot][j] = part[0];
      }
  }
  // ... and of all warps.
  METHOD void sum_owners_over_warps(Real (&own)[kSlots][kRows]) {
    Real flat[kSlots * kRows];
    EACH_SLOT EACH_ROW flat[slot * kRows + j] = own[slot][j];
    sum_over_warps(flat, 32);
    EACH_SLOT EACH_ROW own[slot][j] = flat[slot * kRows + j];
  }
  // The value of the lane that has delay d, to all eight.
  METHOD Real from_owner(const Real (&own)[kSlots][kRows], int d, int j) const {
    return shuffle(own[d / 8][j], d % 8 * 4 + (lane & 3));
  }

  // Zoneout: units keep their previous value where a mask says so, or in evaluation in expectation.
  METHOD bool is_kept(const uint8_t* mask, long trial, int s, int i) const {
    return has(i) && is_active(s, i) && mask[e * trial + at(s, i, H)];
  }
  METHOD Real apply_zoneout(const uint8_t* mask, long trial, int s, int i, Real before, Real fresh) const {
    if (kMasks) return is_kept(mask, trial, s, i) ? before : fresh;
    if (kMixture) return Real(args.zoneout) * before + (1 - Real(args.zoneout)) * fresh;
    return fresh;
  }
  // ... and of a gradient, the share that goes to the previous value; the rest is for the new one.
  METHOD Real zoneout_share(const uint8_t* mask, long trial, int s, int i, Real& gradient) const {
    Real share = 0;
    if (kMasks) {
      if (is_kept(mask, trial, s, i)) share = gradient, gradient = 0;
    } else if (kMixture) {
      share = Real(args.zoneout) * gradient, gradient *= 1 - Real(args.zoneout);
    }
    return share;
  }
  METHOD Real dropout(int i) const {
    return kDropout && has(i) ? args.dropout[e * args.dropout_trial + at(0, i, H)] : Real(1);
  }
};
