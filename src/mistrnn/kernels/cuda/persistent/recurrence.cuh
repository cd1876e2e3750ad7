// The one loop over time of every fused GPU form, forwards and backwards, with the cell plugged in.
//
// A step is one product or two (PHASES), each followed by what the cell makes of it. Blocks never wait for blocks of other
// sequences.
#pragma once

#include "kernels/cuda/persistent/gates.cuh"

// When everybody has published what the product reads (and arrived, see Block::wait): its result is there for the thread
// that called. What is published next goes to another buffer, because others may still read this one; the barrier after
// that frees it. Whatever can be read ahead is read while the product is under way.
template <int PHASE, class S, class Ahead>
DEVICE void multiply(Block& k, const Weights<S>& weights, Real (&z)[S::kRowBlocks][kValues], Ahead read_ahead) {
  k.wait();
  if (k.has_units) read_ahead();
  gemm<PHASE>(k, weights, z);
  if (KS > 1) {  // add what the other ranges give
    const int range = threadIdx.x / (32 * W);
    auto place = [&](int other, int g) {
      return k.split_k_buffer + ((((other - 1) * W + k.warp) * S::kRowBlocks + g) * 32 + k.lane) * kValues;
    };
    if (range > 0)
#pragma unroll
      for (int g = 0; g < S::kRowBlocks; g++) store_all(place(range, g), z[g]);
    sync_block();
    for (int other = 1; range == 0 && other < KS; other++)
#pragma unroll
      for (int g = 0; g < S::kRowBlocks; g++) {
        Values more;
        load_all(place(other, g), more);
        EACH_VALUE z[g][i] += more[i];
      }
  }
  if (kBuffers == 1) k.sync();  // large layers have room for one: everybody has read it
  k.next_buffer();
}

template <class Cell> DEVICE void run_cell(const Arguments& args) {
  Block k(args);
  Cell cell;
  Weights<Shape0> weights_0;
  Weights<Shape1> weights_1;
  Real z_0[Shape0::kRowBlocks][kValues], z_1[Shape1::kRowBlocks][kValues];
  uint4* room = (uint4*)(shared_memory() + WEIGHTS_OFFSET);
  const uint4* packed = args.packed + (k.e * C + k.cta) * kTiles * (long)kFragments * 32;
  weights_0.begin(packed, room);
  if (PHASES > 1) weights_1.begin(packed + Shape0::kTiles * kFragments * 32, room + Shape0::kSharedTiles * kFragments * 32);
  if (kSoftmaxTiles > 0) cell.softmax.begin(packed + (kTiles - kSoftmaxTiles) * (long)kFragments * 32);
  cell.begin(k);
  k.sync();  // everyone's memory is as it must be before others write to it
  const int steps = (int)args.T;
#if BACKWARD
  EACH_VALUE z_0[0][i] = z_1[0][i] = 0;
  if (k.has_units) cell.begin_backward(k);
  for (int s = steps - 1; s >= 0; s--) {
    if (k.has_units) cell.template backward<0>(k, s, PHASES > 1 ? z_1 : z_0);
    multiply<0>(k, weights_0, z_0, [&] { cell.template read_ahead<0>(k, s); });
    if (PHASES > 1) {
      if (k.has_units) cell.template backward<PHASES - 1>(k, s, z_0);
      multiply<PHASES - 1>(k, weights_1, z_1, [&] { cell.template read_ahead<PHASES - 1>(k, s); });
    }
    k.gradient_now -= args.B * kGradientStride, k.mixed_now -= args.B * MIXED_STRIDE;
  }
  if (k.has_units) cell.finish_sums(k), cell.finish(k, PHASES > 1 ? z_1 : z_0);
#else
  if (k.has_units || cell.kAllBegin) cell.begin_forward(k);
  if (k.has_units) k.arrive();
  for (int s = cell.first_step(k); s < steps; s++) {
    multiply<0>(k, weights_0, z_0, [&] { cell.template read_ahead<0>(k, s); });
    if (k.has_units) cell.template forward<0>(k, s, z_0);
    if (PHASES > 1) {
      multiply<PHASES - 1>(k, weights_1, z_1, [&] { cell.template read_ahead<PHASES - 1>(k, s); });
      if (k.has_units) cell.template forward<PHASES - 1>(k, s, z_1);
    }
  }
  if (k.has_units) cell.finish(k, z_0);
  k.wait();  // the last state is still sent around: nobody leaves before it has come
#endif
}
