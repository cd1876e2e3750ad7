// The fused GPU form of the simple RNN; equation numbers as in reference.py, primed in the backward pass.
#pragma once

#include "kernels/cuda/persistent/one_gate.cuh"

struct Rnn : OneGateCell {
  template <int PHASE> METHOD void forward(Block& k, int s, Real (&z)[1][kValues]) {
    Values& v = z[0];
    add_input(k, 0, v);
    norm(k, s, 0, v);
    EACH_VALUE v[i] = tanh_of(v[i]);  // (1)
    new_state(k, s, v);
  }
  template <int PHASE> METHOD void backward(Block& k, int s, Real (&z)[1][kValues]) {
    Values& dh = z[0];
    state_gradient(k, s, dh);
    EACH_VALUE dh[i] *= 1 - state[i] * state[i];  // (1')
    pass_gradient(k, s, dh);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k) {
  return gate_weight<OneGate>(args, e, cta, block, local, k);
}
