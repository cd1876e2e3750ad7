// The fused GPU form of the simple RNN; equation numbers as in reference.py, primed in the backward pass.
#pragma once

#include "kernels/cuh/recurrence.cuh"

struct RnnGates {
  static constexpr int kGates = 1, kGradients = 1, kExtra = 0, kGroups = 1, kBlocks = 1, kSaved = 0;
  static constexpr bool kSavesFresh = true;
  static METHOD constexpr int gate_row(int) { return 0; }
  static METHOD constexpr int gradient_column(int) { return 0; }
  static METHOD constexpr int norm_block(int) { return 0; }
};

struct Rnn : Gates<RnnGates>, RnnGates {
  METHOD int first_step(Block& k) { return k.load_x(0), 0; }

  template <int PHASE> METHOD void forward(Block& k, int s) {
    Real v[4];
    k.product(0, Shape0::KS, v);
    add_input(k, s, 0, v);
    norm(k, s, 0, v);
    EACH_UNIT v[i] = tanh_of(v[i]);  // (1)
    new_state(k, s, v);
    k.load_x(s + 1);
  }
  METHOD void finish(Block& k) {
#if BACKWARD
    finish_backward(k, Shape0::KS);
#else
    finish_forward(k);
#endif
  }

  Real state[4], outer[4];  // read one step ahead

  METHOD void load(Block& k, int s) {
    if (s < 0) return;
    fresh_again(k, s, state);
    load_outer(k, s, outer);
  }
  METHOD void begin_backward(Block& k) {
    Gates<RnnGates>::begin_backward(k);
    load(k, (int)k.args.T - 1);
  }
  template <int PHASE> METHOD void backward(Block& k, int s) {
    Real dh[4];
    if (kSumsX) k.load_x(s);
    sent_back(k, s, Shape0::KS, dh);
    EACH_UNIT dh[i] += outer[i];
    split_kept(k, s, dh);
    EACH_UNIT dh[i] *= 1 - state[i] * state[i];  // (1')
    norm_backward(k, s, 0, dh);
    gradient(k, s, 0, dh);
    k.publish(0, dh);
    load(k, s - 1);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int row, int k) {
  return gate_weight<RnnGates>(args, e, cta, row, k);
}
