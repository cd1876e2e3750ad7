// One step of a network of residual blocks, standardisation to scores. `kernels/cpu/library.py` mirrors these structs.
//
// B sequences, C input channels, W width of the network, P = W padded to a multiple of 16, H units of a recurrent layer,
// K taps of a convolution, S scores. Real: float or double, as is_double says. The caller owns all memory.
//
// A matrix [in, out] lies in panels (kernels/cpu/product.h), its columns padded with zeros.
#pragma once

#include <stdint.h>

namespace mistrnn {

struct NetworkBlock {
  void* layer;                             // stream of the recurrent layer, from mistrnn_stream_new
  int64_t H, memory, place;                // place: where the layer's ring of 2 * memory states gets the next one
  const void *layer_scale, *layer_shift;   // [P] norm in front of the layer
  const void *conv_weight, *conv_bias;     // [K, P] newest tap first, [P]; null without a convolution
  void* history;                           // [2 (K - 1), B, P] ring: the last K - 1 inputs are contiguous, oldest first
  int64_t history_place;                   // where it gets the next one
  const void *projection_weight, *projection_bias;  // [H, W] [P]
  const void *unit_scale, *unit_shift;              // [P] norm in front of the gated unit
  const void *up_weight, *up_bias;                  // [W, 2P] [2P]: the gate's columns, then the value's
  const void *down_weight, *down_bias;              // [W, W] [P]
};

enum PoolingKind : int64_t { kLast = 0, kMean = 1, kMax = 2 };

struct Network {
  int64_t is_double, level;  // level: instruction set
  int64_t B, C, W, P, K, S;
  const double *mean, *deviation;                // [C]
  const void *embedding_weight, *embedding_bias;  // [C, W] [P]
  NetworkBlock* blocks;
  int64_t block_count;
  const void *scale, *shift;                 // [P] last norm
  int64_t pooling_count;                     // 0: scores of the step itself
  const int64_t* poolings;                   // PoolingKind each
  int64_t* count;                            // [B] steps so far
  void* pooled;                              // [B, pooling_count, W]
  const void *head_weight, *head_bias;       // [pooling_count * W or W, S] [S]
  void *standardised, *x, *y;                // workspace: [B, C] [B, P] [B, P]
  void *layer_input, *layer_output;          // [B, W] [B, H]
  void *up, *scores;                         // [B, 2P] [B, S rounded up to whole vectors]
};

}  // namespace mistrnn
