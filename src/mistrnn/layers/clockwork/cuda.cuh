// The fused GPU form of the Clockwork RNN; equation numbers as in reference.py, primed in the backward pass.
//
// All groups are computed at all steps, and those that do not tick keep their state.
#pragma once

#include "kernels/cuh/recurrence.cuh"

struct ClockworkGates {
  static constexpr int kGates = 1, kGradients = 1, kExtra = 0, kGroups = kNorm ? D : 1, kBlocks = D, kSaved = 0;
  static constexpr bool kSavesFresh = true;
  static METHOD constexpr int gate_row(int) { return 0; }
  static METHOD constexpr int gradient_column(int) { return 0; }
  static METHOD constexpr int norm_block(int) { return 0; }
  static METHOD int period(int unit) {
    int found = 1;
    EACH_DELAY if (unit / (H / D) == d) found = delay(d);
    return found;
  }
};

struct Clockwork : Gates<ClockworkGates>, ClockworkGates {
  long start;  // the sequence's clock at the first step
  int periods[4];

  METHOD void begin(Block& k) {
    Gates<ClockworkGates>::begin(k);
    start = k.args.clock[k.e * k.args.clock_trial + k.row];
    EACH_UNIT periods[i] = period(k.unit(i));
  }
  METHOD int first_step(Block& k) { return k.load_x(0), 0; }
  METHOD bool ticks(Block& k, int s, int i) const {
    long clock = start + s;
    if (kReset && k.active(s) && k.origin(s) >= 0) clock = s - k.origin(s);
    return clock % periods[i] == 0;
  }

  template <int PHASE> METHOD void forward(Block& k, int s) {
    Real v[4];
    k.product(0, Shape0::KS, v);
    add_input(k, s, 0, v);
    norm(k, s, 0, v);
    EACH_UNIT v[i] = ticks(k, s, i) ? tanh_of(v[i]) : h[i];  // (1) (2)
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
    Gates<ClockworkGates>::begin_backward(k);
    load(k, (int)k.args.T - 1);
  }
  template <int PHASE> METHOD void backward(Block& k, int s) {
    Real dh[4];
    if (kSumsX) k.load_x(s);
    sent_back(k, s, Shape0::KS, dh);
    EACH_UNIT dh[i] += outer[i];
    split_kept(k, s, dh);
    EACH_UNIT {
      const bool ticked = ticks(k, s, i);
      if (!ticked) h[i] += dh[i];                                // (2')
      dh[i] = ticked ? dh[i] * (1 - state[i] * state[i]) : Real(0);  // (1')
    }
    norm_backward(k, s, 0, dh);
    gradient(k, s, 0, dh);
    k.publish(0, dh);
    load(k, s - 1);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int row, int k) {
#if BACKWARD
  const int to = any_unit(k), from = own_unit(cta, row);
#else
  const int to = own_unit(cta, row), from = any_unit(k);
#endif
  if (to < 0 || from < 0 || ClockworkGates::period(to) > ClockworkGates::period(from)) return 0;  // severed
  return element(args, e, to, from, H);
}
