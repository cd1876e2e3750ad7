// A block of threads that takes some sequences of one trial through all steps: what a cell sees of it.
//
// A block owns ROWS sequences. A cluster of CLUSTER blocks shares the units among its blocks; each computes its own ones
// for the same sequences and tells the others. A thread of the cell has four units of one sequence, always the same, so
// that states which it reads again later are its own. Its units lie a quarter of the block's apart (neighbouring threads
// then read neighbouring memory), but their four places in the vectors u and z follow each other: place 4 tau + i is unit
// tau + i * quarter.
//
// Names as in call.h of the CPU forms. Everything that is known when a kernel is compiled is a constant: the sizes, the
// delays, and which options there are. "Step" counts in the order of the run, "time" in that of the input.
#pragma once

#include "kernels/cuh/device.cuh"

typedef REAL Real;

constexpr int H = HIDDEN, D = COUNT, M = MEMORY, C = CLUSTER, R = ROWS, W = WARPS, P = PARTS;
constexpr int I = INLINE_INPUTS < 0 ? 0 : INLINE_INPUTS;  // inputs that the kernel multiplies itself
constexpr bool kProjected = INLINE_INPUTS < 0;            // or their products with weight_ih come as `projected`
constexpr bool kLengths = HAS_LENGTHS, kReset = HAS_RESET, kNorm = HAS_NORM, kDropout = HAS_DROPOUT, kBias = HAS_BIAS;
constexpr bool kSave = SAVE, kReverse = REVERSE, kPrefetch = PREFETCH;
constexpr bool kSumsX = SUMS_X;          // whether the gradient of weight_ih, for one input, is added up on the way
constexpr bool kMasks = ZONEOUT == 1;    // zoneout by masks
constexpr bool kMixture = ZONEOUT == 2;  // and in evaluation, by its probability
constexpr int kUnits = (H + C - 1) / C, kQuarter = (kUnits + 3) / 4, kPlaces = 4 * kQuarter;
constexpr int kEights = (kQuarter + 7) / 8;        // warps beside each other along the units
constexpr int kRowBlocks = (R + 3) / 4;            // and along the sequences
constexpr int NT = (R + 7) / 8;                    // tiles along the sequences
constexpr int kZStride = Z_STRIDE, kStride = U_STRIDE;  // of a sequence in z (numbers) and u (bytes)
constexpr int kBuffers = C > 1 ? 2 : 1;            // of u: other blocks of the cluster may still read the last one
constexpr int kDelays = D > 0 ? D : 1, kSlots = (kDelays + 7) / 8;
constexpr int kSumWidth = SUM_WIDTH;               // numbers that are added up over the units at once, at most

DEVICE constexpr int delay(int d) {
  constexpr int values[] = {DELAYS};
  return values[d];
}

struct Arguments {
  long E, T, B;
  const Real* x;  // [E, T, B, I]
  long x_trial, x_time, x_sequence;
  const Real* projected;  // [E, T, B, G]
  const Real *weight_ih, *weight_hh, *bias, *bias_hn, *gain;
  long weight_ih_trial, weight_hh_trial, bias_trial, bias_hn_trial, gain_trial;
  uint4* packed;  // [E, C, tiles]
  const Real *initial_h, *initial_c;
  long initial_h_trial, initial_c_trial;
  const long *clock, *lengths;
  long clock_trial, lengths_trial;
  const int* origin;  // [E, T, B] the newest step at which the sequence began afresh, or less than -MEMORY
  long origin_trial;
  const uint8_t *keep_h, *keep_c;
  long keep_h_trial, keep_c_trial;
  const Real* dropout;
  long dropout_trial;
  double zoneout;
  Real *output, *final_h, *final_c, *saved;
  const Real* d_output;
  long d_output_trial, d_output_time, d_output_sequence, d_output_unit;
  const Real *d_final_h, *d_final_c;
  long d_final_h_trial, d_final_c_trial;
  Real* dz;     // [E, T, B, columns] gradients of the pre-activations, by step
  Real* mixed;  // [E, T, B, H] what MIST's last matrix read, by step
  Real* ring;   // [E, ring, B, H] of the newest steps: MIST's dm backwards, sums under way of NARX
  Real* sums;   // [E, B, kinds, columns] sums over all steps: of dz, of dz x, of the gradients of the gains
  Real *d_initial_h, *d_initial_c;
};

// float: exact to the last bits where the product is, else as fast as the product is coarse.
constexpr bool kFast = P == 1 || P == 2;
DEVICE double exp_of(double x) { return exp(x); }
DEVICE float exp_of(float x) { return kFast ? fast_exp(x) : expf(x); }
DEVICE double reciprocal(double x) { return 1 / x; }
DEVICE float reciprocal(float x) { return kFast ? fast_reciprocal(x) : 1 / x; }
DEVICE double tanh_of(double x) { return tanh(x); }
DEVICE float tanh_of(float x) { return kFast ? 1 - 2 * fast_reciprocal(1 + fast_exp(2 * x)) : tanhf(x); }
template <class V> DEVICE V sigmoid_of(V x) { return reciprocal(1 + exp_of(-x)); }

// Four numbers that follow each other, at once.
DEVICE void load_four(const float* from, float (&v)[4]) {
  const float4 all = *(const float4*)from;
  v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
}
DEVICE void load_four(const double* from, double (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = from[i];
}

#define EACH_UNIT _Pragma("unroll") for (int i = 0; i < 4; i++)
#define EACH_DELAY _Pragma("unroll") for (int d = 0; d < D; d++)

// Units that do not exist (where four times the quarter is more than there are) are read as the thread's first one: what
// they compute meets weights of zero, and is never written.
constexpr bool kAllUnits = kUnits == kPlaces && kUnits * C == H;
constexpr bool kOnlyLast = kUnits * C == H && kQuarter >= 3;  // then only a fourth unit can be missing

struct Block {
  const Arguments& args;
  char* u;       // what a product reads, in parts: [buffers, 8 NT, kStride]
  Real* z;       // what a product gives: [ranges, R, kZStride]
  Real* table;   // weights of the inputs, biases, gains
  Real* totals;  // [2, C kEights, R, kSumWidth]
  int cta, tau, b, length;
  long e, row;     // of the sequence, or of the last one where the thread has none
  int there_units;  // bit i: the thread has a sequence and its unit i exists
  int missing[4];  // from the first unit to unit i, in memory
  bool in_cell, in_batch;  // the thread has units, and a sequence
  int buffer = 0, totals_buffer = 0;
  Real x[I > 0 ? I : 1];
  int step_h, step_s, step_x;  // from one step to the next, in [B, H], in [B, S], in x
  const Real *x_at, *output_at, *saved_at;  // this thread's sequence (and first unit) at the first step

  METHOD Block(const Arguments& args) : args(args) {
    char* memory = shared_memory();
    u = memory;
    z = (Real*)(u + kBuffers * NT * 8 * kStride);
    table = z + Z_RANGES * R * kZStride;
    totals = table + TABLE_SIZE;
    cta = C > 1 ? cluster_rank() : 0;
    e = blockIdx.y;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    in_cell = warp < kRowBlocks * kEights;
    tau = in_cell ? warp / kRowBlocks * 8 + (lane & 7) : kEights * 8 + (lane & 7);
    b = in_cell ? warp % kRowBlocks * 4 + (lane >> 3) : 0;
    row = (long)(blockIdx.x / C) * R + b;
    in_batch = in_cell && row < args.B;
    row = row < args.B ? row : args.B - 1;
    there_units = 0;
    EACH_UNIT {
      const int local = first_place() / 4 + i * kQuarter;
      const bool exists = local < kUnits && cta * kUnits + local < H;
      missing[i] = exists ? i * kQuarter : 0;
      if (in_batch && tau < kQuarter && exists) there_units |= 1 << i;
    }
    length = (int)args.T;
    if (kLengths) {  // never more than there are, whatever the caller says: memory would be overwritten
      const long own = args.lengths[e * args.lengths_trial + row];
      length = own < 0 ? 0 : own < args.T ? (int)own : (int)args.T;
    }
    step_h = (int)args.B * H, step_s = (int)args.B * SAVED_SIZE, step_x = (int)args.x_time;
    output_at = args.output + (e * args.T * args.B + row) * H + first_unit();
    saved_at = args.saved + (e * args.T * args.B + row) * SAVED_SIZE;
    x_at = args.x + e * args.x_trial + row * args.x_sequence;
    for (int n = threadIdx.x; n < kBuffers * NT * 2 * kStride; n += W * 32) ((unsigned*)u)[n] = 0;
    for (int n = threadIdx.x; n < Z_RANGES * R * kZStride; n += W * 32) z[n] = 0;
  }

  METHOD int first_place() const { return tau < kQuarter ? 4 * tau : 0; }
  METHOD int first_unit() const { return cta * kUnits + (tau < kQuarter ? tau : 0); }
  METHOD int next(int i) const { return kAllUnits || (kOnlyLast && i < 3) ? i * kQuarter : missing[i]; }
  METHOD int unit(int i) const { return first_unit() + next(i); }
  METHOD bool has(int i) const { return there_units >> i & 1; }
  // Whether the thread is one of the eight that write what belongs to the delays of its sequence.
  METHOD bool owns_extra() const { return tau < 8 && in_batch; }
  METHOD bool active(int s) const { return !kLengths || s < length; }
  METHOD int time(int s) const { return kReverse && active(s) ? length - 1 - s : s; }

  // This thread's place at a step: in [E, T, B, H] by time or by step, and among the saved values.
  METHOD long by_time(int s) const { return (long)time(s) * step_h; }
  METHOD long by_step(int s) const { return (long)s * step_h; }
  METHOD Real* saved(int s) const { return (Real*)saved_at + (long)s * step_s; }
  // ... and in a state [E, M, B, H] whose trial axis has a stride of its own.
  METHOD long in_state(int m, long trial) const { return e * trial + (m * args.B + row) * H + first_unit(); }

  METHOD void load(const Real* from, Real (&v)[4]) const { EACH_UNIT v[i] = from[next(i)]; }
  METHOD void store(Real* to, const Real (&v)[4]) const { EACH_UNIT if (has(i)) to[next(i)] = v[i]; }

  METHOD int origin(int s) const { return args.origin[e * args.origin_trial + (long)s * args.B + row]; }
  // Whether step s of the sequence may read the state d steps before; s == length asks for what is handed on.
  METHOD bool sees(int s, int d) const {
    if (!kReset || length == 0) return true;
    return s - d >= origin(s < length ? s : length - 1);
  }

  // The state d steps before step s.
  METHOD void past(int s, int d, Real (&h)[4]) const {
    load(s >= d ? output_at + by_time(s - d) : args.initial_h + in_state(M + s - d, args.initial_h_trial), h);
    if (kReset && !sees(s, d)) EACH_UNIT h[i] = 0;
  }

  // Write four places of vector `block` of u, for every block of the cluster.
  METHOD void publish(int block, const Real (&v)[4]) {
    if (tau >= kQuarter) return;
    char* to = u + (buffer * NT * 8 + b) * kStride;
    const int four = (block * C + cta) * kQuarter + tau;
#if PARTS == 0
    Real* place = (Real*)to + 4 * four;
    for (int rank = 0; rank < C; rank++)
      EACH_UNIT {
        if (C > 1) store_remote(place + i, rank, v[i]);
        else place[i] = v[i];
      }
#else
    uint2 parts[P];
    float left[4];
    EACH_UNIT left[i] = v[i];
#pragma unroll
    for (int p = 0; p < P; p++) {
      parts[p] = {rounded(left[0], left[1]), rounded(left[2], left[3])};
      left[0] -= as_float(parts[p].x << 16), left[1] -= as_float(parts[p].x & 0xffff0000u);
      left[2] -= as_float(parts[p].y << 16), left[3] -= as_float(parts[p].y & 0xffff0000u);
    }
    to += four * 8 * P;
#pragma unroll
    for (int rank = 0; rank < C; rank++) {
      if (P == 2) {
        const uint4 both = {parts[0].x, parts[0].y, parts[P - 1].x, parts[P - 1].y};
        if (C > 1) store_remote(to, rank, both);
        else *(uint4*)to = both;
      } else {
#pragma unroll
        for (int p = 0; p < P; p++) {
          if (C > 1) store_remote(to + p * 8, rank, parts[p]);
          else ((uint2*)to)[p] = parts[p];
        }
      }
    }
#endif
  }
  // Write one place of the part of u that comes after `blocks` vectors; every block of the cluster does so for itself.
  METHOD void publish_extra(int blocks, int d, Real v) {
    char* to = u + (buffer * NT * 8 + b) * kStride;
    const int place = blocks * C * kPlaces + d;
#if PARTS == 0
    ((Real*)to)[place] = v;
#else
    float left = v;
#pragma unroll
    for (int p = 0; p < P; p++) {
      const unsigned part = rounded(left, 0.0f);
      *(unsigned short*)(to + place / 4 * 8 * P + p * 8 + place % 4 * 2) = (unsigned short)part;
      left -= as_float(part << 16);
    }
#endif
  }
  METHOD void sync_published() {
    if (C > 1) sync_cluster();
    else sync_block();
  }
  METHOD const char* published() const { return u + buffer * NT * 8 * kStride; }
  METHOD void next_buffer() { buffer = kBuffers - 1 - buffer; }

  // What the product gave for four places of row block g.
  METHOD void product(int g, int ranges, Real (&v)[4]) const {
    const Real* from = z + b * kZStride + g * kPlaces + first_place();
    load_four(from, v);
#pragma unroll
    for (int range = 1; range < ranges; range++) {
      Real part[4];
      load_four(from + range * R * kZStride, part);
      EACH_UNIT v[i] += part[i];
    }
  }
  METHOD Real product_extra(int blocks, int d, int ranges) const {
    const Real* from = z + b * kZStride + blocks * kPlaces + d;
    Real v = from[0];
#pragma unroll
    for (int range = 1; range < ranges; range++) v += from[range * R * kZStride];
    return v;
  }

  METHOD void load_x(int s) {
#pragma unroll
    for (int k = 0; k < I; k++) x[k] = active(s) && s < (int)args.T ? x_at[(long)time(s) * step_x + k] : Real(0);
  }

  // The sum of each v[n] over all units of the sequence; every thread of the cluster must come here.
  template <int N> METHOD void add_over_units(Real (&v)[N]) {
    Real* to = totals + totals_buffer * (C * kEights * R * kSumWidth);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int distance = 1; distance < 8; distance *= 2) v[n] += from_other_lane(v[n], distance);
    if ((threadIdx.x & 7) == 0 && tau < kEights * 8) {
      Real* place = to + ((cta * kEights + tau / 8) * R + b) * kSumWidth;
#pragma unroll
      for (int n = 0; n < N; n++) {
        if (C == 1) place[n] = v[n];
        else
          for (int rank = 0; rank < C; rank++) store_remote(place + n, rank, v[n]);
      }
    }
    sync_published();
#pragma unroll
    for (int n = 0; n < N; n++) v[n] = 0;
    for (int k = 0; k < C * kEights; k++)
#pragma unroll
      for (int n = 0; n < N; n++) v[n] += to[(k * R + b) * kSumWidth + n];
    totals_buffer ^= 1;
  }

  // For delays that the eight lanes of a sequence have among them (d, and d + 8 if there are so many): the sum of each
  // v[d] over all units comes to the lane of d. Every thread of the cluster must come here.
  METHOD void add_to_owners(Real (&v)[kDelays], Real (&own)[kSlots]) {
    const int lane = threadIdx.x & 7;
#pragma unroll
    for (int slot = 0; slot < kSlots; slot++) {
      Real part[8];
#pragma unroll
      for (int n = 0; n < 8; n++) part[n] = slot * 8 + n < D ? v[slot * 8 + n] : Real(0);
#pragma unroll
      for (int width = 4; width > 0; width /= 2)  // halve the delays that a lane has, and the lanes that have them
#pragma unroll
        for (int n = 0; n < width; n++) {
          const bool upper = lane & width;
          const Real given = upper ? part[n] : part[n + width], kept = upper ? part[n + width] : part[n];
          part[n] = kept + from_other_lane(given, width);
        }
      own[slot] = part[0];
    }
    Real* to = totals + totals_buffer * (C * kEights * R * kSumWidth);
    if (tau < kEights * 8) {
      Real* place = to + ((cta * kEights + tau / 8) * R + b) * kSumWidth + lane;
#pragma unroll
      for (int slot = 0; slot < kSlots; slot++)
        if (lane + slot * 8 < D) {
          if (C == 1) place[slot * 8] = own[slot];
          else
            for (int rank = 0; rank < C; rank++) store_remote(place + slot * 8, rank, own[slot]);
        }
    }
    sync_published();
#pragma unroll
    for (int slot = 0; slot < kSlots; slot++) {
      own[slot] = 0;
      for (int k = 0; k < C * kEights; k++)
        if (lane + slot * 8 < D) own[slot] += to[(k * R + b) * kSumWidth + lane + slot * 8];
    }
    totals_buffer ^= 1;
  }
  // The value of the lane that has delay d, to all eight.
  METHOD Real from_owner(const Real (&own)[kSlots], int d) const {
    return from_lane(own[d / 8], (int)(threadIdx.x & 24) + d % 8);
  }

  // Zoneout: units keep their previous value where a mask says so, or in evaluation in expectation.
  METHOD Real keep(const uint8_t* mask, long trial, int s, int i, Real before, Real fresh) const {
    if (kMasks)
      return mask[e * trial + row * H + by_step(s) + unit(i)] ? before : fresh;
    if (kMixture) return Real(args.zoneout) * before + (1 - Real(args.zoneout)) * fresh;
    return fresh;
  }
  // ... and of a gradient, the share that goes to the previous value; the rest is for the new one.
  METHOD Real kept_share(const uint8_t* mask, long trial, int s, int i, Real& gradient) const {
    Real kept = 0;
    if (kMasks) {
      if (mask[e * trial + row * H + by_step(s) + unit(i)]) kept = gradient, gradient = 0;
    } else if (kMixture) {
      kept = Real(args.zoneout) * gradient, gradient *= 1 - Real(args.zoneout);
    }
    return kept;
  }

  METHOD Real dropout(int i) const {
    return kDropout ? args.dropout[e * args.dropout_trial + row * H + unit(i)] : Real(1);
  }
};
