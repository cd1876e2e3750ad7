// Arguments of the kernels of network blocks, other than recurrent layers: depthwise convolution over time,
// batch normalisation over valid frames, gated linear unit, random convolutions. `kernels/cpu/library.py` mirrors these structs.
//
// E trials, T steps, B sequences, C channels, K taps. All tensors are contiguous in the shape that is given.
#pragma once

#include <stdint.h>

namespace mistrnn {

// Threads and sizes, common to all kernels.
struct BlockSizes {
  int64_t is_double, threads;
  void (*team)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of torch's OpenMP, or null
  int (*team_size)();                                        // its omp_get_num_threads
  int64_t E, T, B, C;
};

// y_t = silu(bias + sum over k of weight_k * x_{t+ahead-k}), channel by channel; x is zero outside of 0 ... T - 1.
struct DepthwiseConv {
  BlockSizes sizes;
  int64_t K, ahead;              // ahead > 0 reads so many future steps
  const void *x, *weight, *bias;  // [E, T, B, C] [E, K, C] [E, C]
  void* y;                        // [E, T, B, C]; null in the backward pass
  const void* d_y;                // [E, T, B, C]; null in the forward pass
  void *d_x, *d_weight, *d_bias;
  void* workspace;                // [E, T, B, C] in the backward pass
};

// y = (x - mean) * rstd * weight + bias over the frames t < lengths[b], zero at all others.
struct BatchNorm {
  BlockSizes sizes;
  double epsilon;
  const int64_t* lengths;         // [E, B], or null: all frames are valid
  const void *x, *weight, *bias;  // [E, T, B, C] [E, C] [E, C]
  void *y, *mean, *rstd;          // [E, T, B, C] [E, C] [E, C]; the backward pass reads mean and rstd
  void* variance;                 // [E, C] of the batch, biased
  const void* d_y;                // null in the forward pass
  void *d_x, *d_weight, *d_bias;
};

// y = silu(a) * b for x = [a | b]; C counts the channels of y.
struct GatedUnit {
  BlockSizes sizes;
  const void *x, *d_y;  // [E, T, B, 2C] [E, T, B, C], the latter null in the forward pass
  void *y, *d_x;
};

// Random convolutions, for `models/random_convolutions.py`. Every kernel has 9 taps, 3 of weight 2 and 6 of weight -1. Inputs
// are whole numbers so small that sums in float are exact in any order: batches, chunks and single steps count the same.
//
// hits[b, f] += the number of steps t < lengths[b] at which convolution f is above its threshold.
struct PositiveCounts {
  BlockSizes sizes;                // one trial: T steps, B sequences, C channels
  int64_t x_sequence, x_channel;   // strides of x; its steps are contiguous
  int64_t memory;                  // steps of x before the first one that counts: at least 8 times each dilation
  int64_t dilation_count;
  const int64_t *dilations;        // [dilation_count]
  const int64_t *thresholds_each;  // [dilation_count] thresholds of each of the 84 kernels
  const int64_t *channels;         // [dilation_count, 84, 10] the number of channels that a kernel reads, then which
  const int64_t *lengths;          // [B], or null: T steps each
  const float *x;                  // [B, C, memory + T]
  const float *thresholds;         // [F]: dilation after dilation, in it kernel after kernel
  double *hits;                    // [B, F]
  int64_t F;
};

// One step of B sequences through random convolutions and their linear head, with K scores.
struct ConvolutionStep {
  int64_t B, C, F, K;
  int64_t memory, place;  // the ring has memory + 1 slots; the next input goes to `place`, which then moves on
  int64_t dilation_count;
  const int64_t *dilations, *thresholds_each, *channels;  // as in PositiveCounts
  const float *thresholds;
  const double *mean, *deviation;  // [C]
  double levels, farthest;         // inputs are clamped to +-farthest deviations and rounded to 1 / levels of one
  float *ring;                     // [B, C, 2 (memory + 1)]: each input twice, so that the newest memory + 1 are contiguous
  int64_t *count;                  // [B] steps so far
  double *hits;                    // [B, F]
  const float *head_weight, *head_bias;  // [K, F] [K]
  float *taps, *shares;            // workspace: [C, 10] [F]
};

}  // namespace mistrnn
