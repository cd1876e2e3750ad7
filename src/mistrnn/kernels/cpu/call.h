// Arguments of one forward or backward run: sizes, pointers and strides. `kernels/cpu/library.py` mirrors the struct; names,
// offsets and sizes of all fields are compared when the library is loaded.
//
// E trials, T steps, B sequences, I inputs, H units, M memory (the longest delay), D delays or periods, S saved values,
// P diagonal weights. Every tensor is contiguous in the given shape except for the trial axis, whose stride (in elements) is
// *_trial: 0 if all trials share the tensor. A null pointer stands for an absent input or a gradient that is not wanted.
#pragma once

#include <stdint.h>

namespace mistrnn {

struct Call {
  int64_t cell;  // index of cells.inc
  int64_t is_double, threads;
  int64_t together;  // whether threads share one trial's weights: 1 yes, 0 no, -1 if it is faster
  void (*team)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of torch's OpenMP, or null
  int (*team_size)();                                        // its omp_get_num_threads
  int64_t E, T, B, I, H, M, D, S;
  const int64_t* delays;  // [D] delays or periods
  int64_t layer_norm, reverse, save;
  double zoneout;  // probability in evaluation; 0 with masks or without zoneout

  const void *x, *weight_ih, *weight_hh, *weight_ch;  // [E, T, B, I] [G, I] [G, Kh] [P, H]
  const void *bias, *bias_hn, *gain;                  // [G] [H] [G]
  int64_t x_trial, x_time, x_sequence;  // strides; the features are contiguous
  int64_t weight_ih_trial, weight_hh_trial, weight_ch_trial, bias_trial, bias_hn_trial, gain_trial;
  const void *initial_h, *initial_c;  // [E, M, B, H]
  int64_t initial_h_trial, initial_c_trial;
  const int64_t *clock, *lengths;  // [E, B]
  int64_t clock_trial, lengths_trial;
  const uint8_t *reset, *keep_h, *keep_c;  // [E, T, B], zoneout masks [E, T, B, H], in the order of the run's own steps
  int64_t reset_trial, keep_h_trial, keep_c_trial;
  const void* dropout;  // [E, B, H]
  int64_t dropout_trial;

  void *output, *final_h, *final_c, *saved;  // [E, T, B, H] [E, M, B, H] [E, M, B, H] [E, T, B, S]

  const void *d_output, *d_final_h, *d_final_c;
  int64_t d_output_trial, d_output_time, d_output_sequence, d_output_unit;  // strides
  int64_t d_final_h_trial, d_final_c_trial;
  void *d_x, *d_weight_ih, *d_weight_hh, *d_weight_ch, *d_bias, *d_bias_hn, *d_gain, *d_initial_h, *d_initial_c;
  void *d_probe_h, *d_probe_c;  // [E, T, B, H] the full derivatives with respect to the h and c of every step
};

enum Status : int64_t { kDone = 0, kOutOfMemory = 1, kBadCall = 2 };

}  // namespace mistrnn
