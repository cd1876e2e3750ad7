// The CUDA kernel of the LSTM with peepholes; equation numbers as in reference.py, primed in the backward pass.
#pragma once

#include "kernels/cuda/persistent/recurrence.cuh"

enum { kI, kF, kGate, kO, kC };

struct PeepholeLstmGates {
  static constexpr int kGates = 4, kGradients = 4, kLagRows = 0, kGroups = 1;
  static constexpr int kSaved = 5, kFreshState = -1, kState = -1;  // saved: i, f, g, o and c after zoneout
  static constexpr bool kPublishesAll = false;
  static METHOD constexpr int gate_row(int g) { return g * H; }
  static METHOD constexpr int gradient_column(int g) { return g * H; }
};

struct PeepholeLstm : Gates<PeepholeLstmGates> {
  Values c;  // forward the memory cell; backward its gradient from the next step

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
    Values now, fresh;
#pragma unroll
    for (int g = kI; g <= kGate; g++) {
      add_input(k, g, gate[g]);
      EACH_VALUE if (g != kGate) gate[g][i] += diagonal(g, i) * c[i];
      norm(k, s, g, gate[g]);
      EACH_VALUE gate[g][i] = g == kGate ? tanh_of(gate[g][i]) : sigmoid_of(gate[g][i]);  // (1) (2) (3)
    }
    EACH_VALUE now[i] = gate[kF][i] * c[i] + gate[kI][i] * gate[kGate][i];                // (4)
    add_input(k, kO, gate[kO]);
    EACH_VALUE gate[kO][i] += diagonal(kO, i) * now[i];
    norm(k, s, kO, gate[kO]);
    EACH_VALUE {
      gate[kO][i] = sigmoid_of(gate[kO][i]);                                              // (5)
      fresh[i] = gate[kO][i] * tanh_of(now[i]);                                           // (6)
      if (k.is_active(s, i)) c[i] = k.apply_zoneout(k.args.keep_c, k.args.keep_c_trial, s, i, c[i], now[i]);
    }
    Values after_zoneout;
    EACH_VALUE after_zoneout[i] = c[i];
    mask_resets(k, s + 1, c);
    new_state(k, s, fresh);
    if (kSave) {
#pragma unroll
      for (int g = 0; g < 4; g++) store_all(k.saved(s, g), gate[g]);
      store_all(k.saved(s, kC), after_zoneout);
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

  Values gates[4], previous, d_out;  // loaded one step ahead

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
    Gates<PeepholeLstmGates>::begin_backward(k);
    EACH_VALUE c[i] = 0;
    if (k.args.d_final_c) k.load_state(k.args.d_final_c, k.args.d_final_c_trial, 0, c);
    load(k, (int)k.args.T - 1);
  }
  template <int PHASE> METHOD void backward(Block& k, int s, Real (&z)[1][kValues]) {
    Values& dh = z[0];
    Values dz[4], now;
    from_next_step(k, s, dh);
    EACH_VALUE dh[i] += d_out[i];
    split_zoneout(k, s, dh);
    write_probe(k, k.args.d_probe_c, s, c);
    EACH_VALUE {
      now[i] = gates[kF][i] * previous[i] + gates[kI][i] * gates[kGate][i];
      dz[kO][i] = dh[i] * tanh_of(now[i]) * gates[kO][i] * (1 - gates[kO][i]);             // (6') (5')
    }
    norm_backward(k, s, kO, dz[kO]);  // before the other gates: the output gate reads c_t
    clear_padding(k, s, dz[kO]);
    EACH_VALUE {
      const Real in = gates[kI][i], forget = gates[kF][i], g = gates[kGate][i], squashed = tanh_of(now[i]);
      Real to_new = c[i];
      const Real to_old = k.zoneout_share(k.args.keep_c, k.args.keep_c_trial, s, i, to_new);
      const Real dc = to_new + dh[i] * gates[kO][i] * (1 - squashed * squashed)            // (6')
                      + dz[kO][i] * diagonal(kO, i);                                      // (5')
      dz[kI][i] = dc * g * in * (1 - in);                                                 // (4') (1')
      dz[kF][i] = dc * previous[i] * forget * (1 - forget);                               // (4') (2')
      dz[kGate][i] = dc * in * (1 - g * g);                                               // (4') (3')
      if (k.is_active(s, i)) c[i] = to_old + dc * forget;                                 // (4')
    }
#pragma unroll
    for (int g = kI; g <= kGate; g++) {
      norm_backward(k, s, g, dz[g]);
      clear_padding(k, s, dz[g]);
    }
    EACH_VALUE c[i] += dz[kI][i] * diagonal(kI, i) + dz[kF][i] * diagonal(kF, i);         // (1') (2')
    mask_resets(k, s, c);
#pragma unroll
    for (int g = 0; g < 4; g++) k.publish(g, dz[g]);
    k.arrive();
#pragma unroll
    for (int g = 0; g < 4; g++) gradient(k, s, g, dz[g]);
    diagonal_gradient(kI, dz[kI], previous), diagonal_gradient(kF, dz[kF], previous), diagonal_gradient(kO, dz[kO], now);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k) {
  return gate_weight<PeepholeLstmGates>(args, e, cta, block, local, k);
}
