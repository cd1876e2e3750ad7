// The fused GPU form of the simple RNN; equation numbers as in reference.py, primed in the backward pass.
#pragma once

#include "kernels/cuh/recurrence.cuh"

struct RnnGates {
  static constexpr int kGates = 1, kGradients = 1, kExtra = 0, kGroups = 1;
  static constexpr int kSaved = 1, kFresh = 0, kState = -1;  // the record: the new state
  static constexpr bool kPublishesAll = false;
  static METHOD constexpr int gate_row(int) { return 0; }
  static METHOD constexpr int gradient_column(int) { return 0; }
};

struct Rnn : Gates<RnnGates> {
  METHOD int first_step(Block&) { return 0; }
  template <int PHASE> METHOD void read_ahead(Block& k, int s) {
    if (BACKWARD) load(k, s - 1);
    else k.load_x(s);
  }

  template <int PHASE> METHOD void forward(Block& k, int s, Real (&z)[1][kValues]) {
    Values& v = z[0];
    add_input(k, s, 0, v);
    norm(k, s, 0, v);
    EACH_VALUE v[i] = tanh_of(v[i]);  // (1)
    new_state(k, s, v);
  }
  METHOD void finish(Block& k, Real (&z)[1][kValues]) {
    if (BACKWARD) finish_backward(k, z[0]);
    else finish_forward(k);
  }

  Values state, outer;  // read one step ahead

  METHOD void load(Block& k, int s) {
    if (s < 0) return;
    load_all(k.record(s, 0), state);
    load_outer(k, s, outer);
    k.load_x(s);
  }
  METHOD void begin_backward(Block& k) {
    Gates<RnnGates>::begin_backward(k);
    load(k, (int)k.args.T - 1);
  }
  template <int PHASE> METHOD void backward(Block& k, int s, Real (&z)[1][kValues]) {
    Values& dh = z[0];
    sent_back(k, s, dh);
    EACH_VALUE dh[i] += outer[i];
    split_kept(k, s, dh);
    EACH_VALUE dh[i] *= 1 - state[i] * state[i];  // (1')
    norm_backward(k, s, 0, dh);
    clear_padding(k, s, dh);
    k.publish(0, dh);
    k.arrive();
    gradient(k, s, 0, dh);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k) {
  return gate_weight<RnnGates>(args, e, cta, block, local, k);
}
DEVICE Real softmax_weight(const Arguments&, long, int, int) { return 0; }
