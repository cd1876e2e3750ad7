// What a run of any kernel is handed, the functions of numbers that all of them use, and how weights are laid out.
//
// Names as in call.h of the CPU forms. Everything that is known when a kernel is compiled is a constant: the sizes, the
// delays, and which options there are.
#pragma once

#include "kernels/cuda/common/bf16_splits.cuh"

typedef REAL Real;

constexpr int H = HIDDEN, D = DELAY_COUNT, M = MEMORY, P = SPLITS;
constexpr int kG = PARAMETER_ROWS, kGradientColumns = GRADIENT_COLUMNS, kGradientStride = GRADIENT_STRIDE;
constexpr bool kFusedInput = FUSED_INPUT;  // the only input is multiplied here, or the products come as `projected`
constexpr bool kBias = HAS_BIAS, kSave = SAVE, kDiagonal = HAS_DIAGONAL;

DEVICE constexpr int delay(int d) {
  constexpr int values[] = {DELAYS};
  return values[d];
}

// The row of weight_ch that belongs to gate g, or -1.
DEVICE constexpr int diagonal_row(int g) {
  constexpr int values[] = {DIAGONAL_ROWS};
  return kDiagonal ? values[g] : -1;
}

struct Arguments {
  long E, T, B;
  const Real* x;  // [E, T, B, 1]
  long x_trial, x_time, x_sequence;
  const Real* projected;  // [E, T, B, G]
  const Real *weight_ih, *weight_hh, *weight_ch, *bias, *bias_hn, *gain;
  long weight_ih_trial, weight_hh_trial, weight_ch_trial, bias_trial, bias_hn_trial, gain_trial;
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
  Real *output, *final_h, *final_c;
  Real* saved;  // [E, blocks] the streams of all warps, then those of the delays
  long saved_trial, saved_block;
  const Real* d_output;
  long d_output_trial, d_output_time, d_output_sequence;
  const Real *d_final_h, *d_final_c;
  long d_final_h_trial, d_final_c_trial;
  Real* dz;     // [E, T, B, columns] gradients of the pre-activations, by step
  Real* mixed;  // [E, T, B, mixed columns] what MIST's last matrix read, by step
  Real* workspace;  // [E, blocks, warps, steps, values] under way between steps: MIST's dm, sums of NARX
  Real* sums;   // [E, blocks, kinds, columns] sums over all steps: of dz, of dz x, of the gradients of the gains
  Real *d_initial_h, *d_initial_c;
  Real *d_probe_h, *d_probe_c;  // [E, T, B, H] the full derivatives with respect to the h and c of every step
};

// float: exact to the last bits where the product is, else as fast as the product is coarse.
constexpr bool kFast = P == 1 || P == 2;
constexpr float kLog2E = 1.4426950408889634f;
DEVICE double exp_of(double x) { return exp(x); }
DEVICE float exp_of(float x) { return kFast ? fast_exp2(kLog2E * x) : expf(x); }
DEVICE double reciprocal(double x) { return 1 / x; }
DEVICE float reciprocal(float x) { return fast_reciprocal(x); }  // to the last bit but one
DEVICE double tanh_of(double x) { return tanh(x); }
DEVICE float tanh_of(float x) {
  return kFast ? fmaf(-2, fast_reciprocal(1 + fast_exp2(2 * kLog2E * x)), 1) : tanhf(x);
}
DEVICE double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }
DEVICE float sigmoid_of(float x) { return reciprocal(1 + exp_of(-x)); }

// Lay out a tile of 16 x 16 weights, in parts, as the tensor cores want it: 16 bytes of each part for a lane.
template <class Weight> DEVICE void pack_splits(int lane, uint4* to, Weight weight) {
  const int q = lane >> 2, c = lane & 3;
  float left[8];
#pragma unroll
  for (int n = 0; n < 8; n++) left[n] = weight(q + (n & 2) * 4, 4 * c + (n & 4) / 2 + (n & 1));  // row, place along k
#pragma unroll
  for (int p = 0; p < P; p++) to[p * 32 + lane] = next_split(left);
}
