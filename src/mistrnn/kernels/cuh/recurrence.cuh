// The one loop over time of every fused GPU form, forwards and backwards, with the cell plugged in.
//
// A step is one product or two (PHASES), each followed (forwards) or preceded (backwards) by what the cell computes from
// numbers of its own; warps that have no units of their own help with the products only. Blocks never wait for blocks of other sequences.
#pragma once

#include "kernels/cuh/gates.cuh"

template <int PHASE, class S> DEVICE void multiply(Block& k, const Weights<S>& weights) {
#if PARTS == 0
  plain_product<PHASE>(k.args, k.e, k.cta, k.published(), k.z);
#else
  product(weights, k.published(), k.z);
#endif
  k.next_buffer();
  sync_block();
}

template <class Cell> DEVICE void run_cell(const Arguments& args) {
  Block k(args);
  Cell cell;
  Weights<Shape0> weights_0;
  Weights<Shape1> weights_1;
  uint4* room = (uint4*)(shared_memory() + TILES_AT);
  const uint4* packed = args.packed + (k.e * C + k.cta) * kTiles * P * 32;
  weights_0.begin(packed, room);
  if (PHASES > 1) weights_1.begin(packed + Shape0::kTiles * P * 32, room + Shape0::kSharedTiles * P * 32);
  cell.begin(k);
  k.sync_published();  // everyone's memory is as it must be before others write to it
  const int steps = (int)args.T;
#if BACKWARD
  cell.begin_backward(k);
  for (int s = steps - 1; s >= 0; s--) {
    if (k.in_cell || kNorm) cell.template backward<0>(k, s);
    k.sync_published();
    multiply<0>(k, weights_0);
    if (PHASES > 1) {
      cell.template backward<PHASES - 1>(k, s);
      k.sync_published();
      multiply<PHASES - 1>(k, weights_1);
    }
  }
  cell.finish_sums(k);
  cell.finish(k);
#else
  cell.begin_forward(k);
  for (int s = cell.first_step(k); s < steps; s++) {
    k.sync_published();
    multiply<0>(k, weights_0);
    if (k.in_cell || kNorm) cell.template forward<0>(k, s);
    if (PHASES > 1) {
      k.sync_published();
      multiply<PHASES - 1>(k, weights_1);
      if (k.in_cell || kNorm) cell.template forward<PHASES - 1>(k, s);
    }
  }
  cell.finish(k);
#endif
  if (C > 1) sync_cluster();  // nobody leaves while others may write to its memory
}
