// Arguments of the kernels of network blocks, other than recurrent layers: depthwise convolution over time,
// batch normalisation over valid frames, gated linear unit. `kernels/_library.py` mirrors these structs.
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

}  // namespace mistrnn
