// What the simple RNN and the Clockwork RNN share: one gate, which makes the new state.
#pragma once

#include "kernels/cuda/persistent/recurrence.cuh"

struct OneGate {
  static constexpr int kGates = 1, kGradients = 1, kLagRows = 0;
  static constexpr int kGroups = kNorm && D > 0 ? D : 1;     // each group of a Clockwork RNN is normalised by itself
  static constexpr int kSaved = 1, kFreshState = 0, kState = -1;  // the record: the new state
  static constexpr bool kPublishesAll = false;
  static METHOD constexpr int gate_row(int) { return 0; }
  static METHOD constexpr int gradient_column(int) { return 0; }
};

struct OneGateCell : OneSavedVector<OneGate> {
  METHOD int first_step(Block&) { return 0; }
  template <int PHASE> METHOD void read_ahead(Block& k, int s) {
    if (BACKWARD) load(k, s - 1);
    else load_input(k, s);
  }
  METHOD void finish(Block& k, Real (&z)[1][kValues]) {
    if (BACKWARD) finish_backward(k, z[0]);
    else finish_forward(k);
  }

  // dh becomes the gradient of the new state, from all that has read it.
  METHOD void state_gradient(Block& k, int s, Values& dh) {
    from_next_step(k, s, dh);
    EACH_VALUE dh[i] += d_out[i];
    split_zoneout(k, s, dh);
  }
  // And dz goes to the earlier state and to the weights.
  METHOD void pass_gradient(Block& k, int s, Values& dz) {
    norm_backward(k, s, 0, dz);
    clear_padding(k, s, dz);
    k.publish(0, dz);
    k.arrive();
    gradient(k, s, 0, dz);
  }
};
