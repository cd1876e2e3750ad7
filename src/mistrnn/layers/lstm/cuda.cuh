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

  METHOD void before(Block& k, int s, Real (&value)[4]) const {  // c before step s
    const bool seen = k.there && k.active(s) && k.sees(s, 1);
    const Real* from = s > 0 ? k.args.saved + k.at_step(s - 1, kS) + kC * H
                             : k.args.initial_c + k.e * k.args.initial_c_trial + k.in_state(0);
    EACH_UNIT value[i] = seen && k.has(i) ? from[k.unit(i)] : Real(0);
  }

  METHOD int first_step(Block& k) {
    k.load_x(0);
    const Real* from = k.args.initial_c + k.e * k.args.initial_c_trial + k.in_state(0);
    const bool seen = k.length == 0 || k.sees(0, 1);
    EACH_UNIT c[i] = seen && k.has(i) ? from[k.unit(i)] : Real(0);
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
    const bool active = k.active(s), seen = s + 1 >= k.length || k.sees(s + 1, 1);
    Real* saved = k.args.saved + k.at_step(s, kS);
    EACH_UNIT {
      const Real now = gate[kF][i] * c[i] + gate[kI][i] * gate[kG][i];                  // (5)
      fresh[i] = gate[kO][i] * tanh_of(now);                                            // (6)
      const Real kept = k.keep(k.args.keep_c, k.args.keep_c_trial, s, i, c[i], now);
      if (kSave && active && k.has(i)) {
#pragma unroll
        for (int g = 0; g < 4; g++) saved[g * H + k.unit(i)] = gate[g][i];
        saved[kC * H + k.unit(i)] = kept;
      }
      if (active) c[i] = seen ? kept : Real(0);
    }
    new_state(k, s, fresh);
    k.load_x(s + 1);
  }
  METHOD void finish(Block& k) {
#if BACKWARD
    finish_backward(k, Shape0::KS);
    if (k.args.d_initial_c)
      EACH_UNIT if (k.has(i)) k.args.d_initial_c[k.e * k.args.B * H + k.in_state(0) + k.unit(i)] = c[i];
#else
    finish_forward(k);
    EACH_UNIT if (k.has(i)) k.args.final_c[k.e * k.args.B * H + k.in_state(0) + k.unit(i)] = c[i];
#endif
  }

  Real gates[4][4], previous[4], outer[4];  // read one step ahead

  METHOD void load(Block& k, int s) {
    if (s < 0) return;
    const Real* saved = k.args.saved + k.at_step(s, kS);
#pragma unroll
    for (int g = 0; g < 4; g++) EACH_UNIT gates[g][i] = k.active(s) && k.has(i) ? saved[g * H + k.unit(i)] : Real(0);
    before(k, s, previous);
    EACH_UNIT outer[i] = 0;
    add_outer(k, s, outer);
  }
  METHOD void begin_backward(Block& k) {
    Gates<LstmGates>::begin_backward(k);
    const Real* from = k.args.d_final_c ? k.args.d_final_c + k.e * k.args.d_final_c_trial + k.in_state(0) : nullptr;
    EACH_UNIT c[i] = from && k.has(i) ? from[k.unit(i)] : Real(0);
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
