// The fused GPU form of LSTM; equation numbers as in reference.py, primed in the backward pass.
#pragma once

#include "kernels/cuda/persistent/recurrence.cuh"

enum { kI, kF, kGate, kO, kC };

struct LstmGates {
  static constexpr int kGates = 4, kGradients = 4, kLagRows = 0, kGroups = 1;
  static constexpr int kSaved = 5, kFreshState = -1, kState = -1;  // the record: i, f, g, o and c after zoneout
  static constexpr bool kPublishesAll = false;
  static METHOD constexpr int gate_row(int g) { return g * H; }
  static METHOD constexpr int gradient_column(int g) { return g * H; }
};

struct Lstm : Gates<LstmGates> {
  Values c;  // forwards the memory cell, backwards the gradient that it gets from the step after

  METHOD int first_step(Block& k) {
    k.load_state(k.args.initial_c, k.args.initial_c_trial, 0, c);
    mask_resets(k, 0, c);
    return 0;
  }

  template <int PHASE> METHOD void read_ahead(Block& k, int s) {
    if (BACKWARD) load(k, s - 1);
    else load_input(k, s);
  }
  template <int PHASE> METHOD void forward(Block& k, int s, Real (&gate)[4][kValues]) {
    Values fresh;
#pragma unroll
    for (int g = 0; g < 4; g++) {
      add_input(k, g, gate[g]);
      norm(k, s, g, gate[g]);
      EACH_VALUE gate[g][i] = g == kGate ? tanh_of(gate[g][i]) : sigmoid_of(gate[g][i]);  // (1) (2) (3) (4)
    }
    EACH_VALUE {
      const Real now = gate[kF][i] * c[i] + gate[kI][i] * gate[kGate][i];               // (5)
      fresh[i] = gate[kO][i] * tanh_of(now);                                            // (6)
      if (k.is_active(s, i)) c[i] = k.apply_zoneout(k.args.keep_c, k.args.keep_c_trial, s, i, c[i], now);
    }
    Values is_kept;
    EACH_VALUE is_kept[i] = c[i];
    mask_resets(k, s + 1, c);
    new_state(k, s, fresh);
    if (kSave) {
#pragma unroll
      for (int g = 0; g < 4; g++) store_all(k.saved(s, g), gate[g]);
      store_all(k.saved(s, kC), is_kept);
    }
  }
  template <int ROW_BLOCKS> METHOD void finish(Block& k, Real (&z)[ROW_BLOCKS][kValues]) {
    if (BACKWARD) {
      finish_backward(k, z[0]);
      if (k.args.d_initial_c) k.store_state(k.args.d_initial_c, 1, 0, c);
    } else {
      finish_forward(k);
      k.store_state(k.args.final_c, 1, 0, c);
    }
  }

  Values gates[4], previous, d_out;  // read one step ahead

  METHOD void load(Block& k, int s) {
    if (s < 0) return;
#pragma unroll
    for (int g = 0; g < 4; g++) load_all(k.saved(s, g), gates[g]);
    if (s > 0) load_all(k.saved(s - 1, kC), previous);
    else k.load_state(k.args.initial_c, k.args.initial_c_trial, 0, previous);
    mask_resets(k, s, previous);
    load_d_output(k, s, d_out);
    k.load_x(s);
  }
  METHOD void begin_backward(Block& k) {
    Gates<LstmGates>::begin_backward(k);
    EACH_VALUE c[i] = 0;
    if (k.args.d_final_c) k.load_state(k.args.d_final_c, k.args.d_final_c_trial, 0, c);
    load(k, (int)k.args.T - 1);
  }
  template <int PHASE> METHOD void backward(Block& k, int s, Real (&z)[1][kValues]) {
    Values& dh = z[0];
    Values dz[4];
    from_next_step(k, s, dh);
    EACH_VALUE dh[i] += d_out[i];
    split_zoneout(k, s, dh);
    write_probe(k, k.args.d_probe_c, s, c);
    EACH_VALUE {
      const Real in = gates[kI][i], forget = gates[kF][i], g = gates[kGate][i], out = gates[kO][i];
      const Real now = tanh_of(forget * previous[i] + in * g);
      Real to_new = c[i];
      const Real to_old = k.zoneout_share(k.args.keep_c, k.args.keep_c_trial, s, i, to_new);
      const Real dc = to_new + dh[i] * out * (1 - now * now);                           // (6')
      dz[kO][i] = dh[i] * now * out * (1 - out);                                        // (4')
      dz[kI][i] = dc * g * in * (1 - in);                                               // (1')
      dz[kF][i] = dc * previous[i] * forget * (1 - forget);                             // (2')
      dz[kGate][i] = dc * in * (1 - g * g);                                             // (3')
      if (k.is_active(s, i)) c[i] = to_old + dc * forget;                               // (5')
    }
    mask_resets(k, s, c);
#pragma unroll
    for (int g = 0; g < 4; g++) {
      norm_backward(k, s, g, dz[g]);
      clear_padding(k, s, dz[g]);
      k.publish(g, dz[g]);
    }
    k.arrive();
#pragma unroll
    for (int g = 0; g < 4; g++) gradient(k, s, g, dz[g]);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k) {
  return gate_weight<LstmGates>(args, e, cta, block, local, k);
}
