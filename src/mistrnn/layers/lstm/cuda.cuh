// The fused GPU form of LSTM; equation numbers as in reference.py, primed in the backward pass.
//
// Saved for the backward pass: i, f, g, o and c (after zoneout), [H] each.
#pragma once

#include "kernels/cuh/recurrence.cuh"

struct LstmGates {
  static constexpr int kGates = 4, kGradients = 4, kExtra = 0, kGroups = 1, kBlocks = 4, kSaved = 5 * H;
  static constexpr bool kSavesFresh = false;
  enum { kI, kF, kG, kO, kC };
  static METHOD constexpr int gate_row(int g) { return g * H; }
  static METHOD constexpr int gradient_column(int g) { return g * H; }
  static METHOD constexpr int norm_block(int g) { return g; }
};

struct Lstm : Gates<LstmGates>, LstmGates {
  Real c[4];  // forwards the memory cell, backwards the gradient that it gets from the step after

  // c before step s, which sees it.
  METHOD const Real* before(Block& k, int s) const {
    return s > 0 ? k.saved(s - 1) + kC * H + k.first_unit() : k.args.initial_c + k.in_state(0, k.args.initial_c_trial);
  }

  METHOD int first_step(Block& k) {
    k.load_x(0);
    k.load(before(k, 0), c);
    if (kReset && k.length > 0 && !k.sees(0, 1)) EACH_UNIT c[i] = 0;
    return 0;
  }

  template <int PHASE> METHOD void forward(Block& k, int s) {
    Real gate[4][4], fresh[4];
#pragma unroll
    for (int g = 0; g < 4; g++) {
      k.product(g, Shape0::KS, gate[g]);
      add_input(k, s, g, gate[g]);
      norm(k, s, g, gate[g]);
      EACH_UNIT gate[g][i] = g == kG ? tanh_of(gate[g][i]) : sigmoid_of(gate[g][i]);  // (1) (2) (3) (4)
    }
    const bool active = k.active(s);
    EACH_UNIT {
      const Real now = gate[kF][i] * c[i] + gate[kI][i] * gate[kG][i];                  // (5)
      fresh[i] = gate[kO][i] * tanh_of(now);                                            // (6)
      if (active) c[i] = k.keep(k.args.keep_c, k.args.keep_c_trial, s, i, c[i], now);
    }
    if (kSave && active) {
      Real* saved = k.saved(s) + k.first_unit();
#pragma unroll
      for (int g = 0; g < 4; g++) k.store(saved + g * H, gate[g]);
      k.store(saved + kC * H, c);
    }
    if (kReset && s + 1 < k.length && !k.sees(s + 1, 1)) EACH_UNIT c[i] = 0;
    new_state(k, s, fresh);
    k.load_x(s + 1);
  }
  METHOD void finish(Block& k) {
#if BACKWARD
    finish_backward(k, Shape0::KS);
    if (k.args.d_initial_c) k.store(k.args.d_initial_c + k.in_state(0, k.step_h), c);
#else
    finish_forward(k);
    k.store(k.args.final_c + k.in_state(0, k.step_h), c);
#endif
  }

  Real gates[4][4], previous[4], outer[4];  // read one step ahead

  METHOD void load(Block& k, int s) {
    if (s < 0) return;
    EACH_UNIT previous[i] = 0;
    if (k.active(s)) {
#pragma unroll
      for (int g = 0; g < 4; g++) k.load(k.saved(s) + g * H + k.first_unit(), gates[g]);
      if (k.sees(s, 1)) k.load(before(k, s), previous);
    }
    load_outer(k, s, outer);
  }
  METHOD void begin_backward(Block& k) {
    Gates<LstmGates>::begin_backward(k);
    EACH_UNIT c[i] = 0;
    if (k.args.d_final_c) k.load(k.args.d_final_c + k.in_state(0, k.args.d_final_c_trial), c);
#pragma unroll
    for (int g = 0; g < 4; g++) EACH_UNIT gates[g][i] = 0;
    load(k, (int)k.args.T - 1);
  }
  template <int PHASE> METHOD void backward(Block& k, int s) {
    Real dh[4], dz[4][4];
    if (kSumsX) k.load_x(s);
    sent_back(k, s, Shape0::KS, dh);
    EACH_UNIT dh[i] += outer[i];
    split_kept(k, s, dh);
    const bool active = k.active(s), seen = active && k.sees(s, 1);
    EACH_UNIT {
      const Real in = gates[kI][i], forget = gates[kF][i], g = gates[kG][i], out = gates[kO][i];
      const Real now = tanh_of(forget * previous[i] + in * g);
      Real to_new = c[i];
      const Real to_old = k.kept_share(k.args.keep_c, k.args.keep_c_trial, s, i, to_new);
      const Real dc = to_new + dh[i] * out * (1 - now * now);                           // (6')
      dz[kO][i] = dh[i] * now * out * (1 - out);                                        // (4')
      dz[kI][i] = dc * g * in * (1 - in);                                               // (1')
      dz[kF][i] = dc * previous[i] * forget * (1 - forget);                             // (2')
      dz[kG][i] = dc * in * (1 - g * g);                                                // (3')
      if (active) c[i] = seen ? to_old + dc * forget : Real(0);                         // (5')
    }
#pragma unroll
    for (int g = 0; g < 4; g++) {
      norm_backward(k, s, g, dz[g]);
      gradient(k, s, g, dz[g]);
      k.publish(g, dz[g]);
    }
    load(k, s - 1);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int row, int k) {
  return gate_weight<LstmGates>(args, e, cta, row, k);
}
