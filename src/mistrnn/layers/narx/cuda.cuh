// The fused GPU form of the simple NARX RNN; equation numbers as in reference.py, primed in the backward pass.
//
// A state is multiplied once, when it is there, by the weights of all delays, and each product waits in a ring for the step
// that it belongs to; backwards a gradient does the same on its way to earlier states. A thread keeps the sums of its own
// units, so that nobody waits for anybody.
#pragma once

#include "kernels/cuh/recurrence.cuh"

struct NarxGates {
  static constexpr int kGates = 1, kGradients = 1, kExtra = 0, kGroups = 1, kBlocks = 1, kSaved = 0;
  static constexpr bool kSavesFresh = true;
  static METHOD constexpr int gate_row(int) { return 0; }
  static METHOD constexpr int gradient_column(int) { return 0; }
  static METHOD constexpr int norm_block(int) { return 0; }
};

struct Narx : Gates<NarxGates>, NarxGates {
  // The sum under way for step s, of M that there are at once.
  METHOD Real* slot(Block& k, int s) const { return k.args.ring + k.in_state((s % M + M) % M, (long)M * k.step_h); }
  METHOD void take(Block& k, int s, Real (&v)[4]) const {  // and leave zeros for the step that has the place next
    const Real zeros[4] = {0, 0, 0, 0};
    k.load(slot(k, s), v);
    k.store(slot(k, s), zeros);
  }
  METHOD void clear(Block& k) const {
    const Real zeros[4] = {0, 0, 0, 0};
    for (int m = 0; m < M; m++) k.store(slot(k, m), zeros);
  }
  METHOD void add(Block& k, int s, const Real (&v)[4]) const {
    Real sum[4];
    k.load(slot(k, s), sum);
    EACH_UNIT sum[i] += v[i];
    k.store(slot(k, s), sum);
  }
  // What the state of step s gives to later steps, by the product that was just made.
  METHOD void give(Block& k, int s) const {
    EACH_DELAY {
      const int later = s + delay(d);
      Real v[4];
      k.product(d, Shape0::KS, v);
      if (later < 0 || !k.active(later) || !k.sees(later, delay(d))) continue;
      add(k, later, v);
    }
  }

  // States from before the run are multiplied first, unless all are zero.
  METHOD void begin_forward(Block& k) {
    clear(k);
    int any = 0;
    for (long n = threadIdx.x; n < (long)M * R * H; n += W * 32) {
      const long row = (long)(blockIdx.x / C) * R + n / H % R;
      if (row < k.args.B && k.args.initial_h[k.e * k.args.initial_h_trial + (n / H / R * k.args.B + row) * H + n % H] != 0) any = 1;
    }
    any_before = any_in_block(any);
    EACH_UNIT h[i] = 0;
    if (any_before) state_before(k, -M, h);
    publish_state(k);
  }
  bool any_before;
  METHOD int first_step(Block& k) { return any_before ? 1 - M : 0; }
  METHOD void state_before(Block& k, int s, Real (&v)[4]) const {
    k.load(k.args.initial_h + k.in_state(M + s, k.args.initial_h_trial), v);
  }

  // The product that comes before step s is that of the state before it.
  template <int PHASE> METHOD void forward(Block& k, int s) {
    Real v[4];
    give(k, s - 1);
    if (s < 0) {
      state_before(k, s, h);
      publish_state(k);
      return;
    }
    if (s == 0 || kMasks || kMixture) k.past(s, 1, h);
    k.load_x(s);
    take(k, s, v);
    add_input(k, s, 0, v);
    norm(k, s, 0, v);
    EACH_UNIT v[i] = tanh_of(v[i]);  // (1)
    Real fresh[4];
    EACH_UNIT fresh[i] = v[i];
    new_state(k, s, fresh);
    // A reset hides the state from the next step, but `give` knows that itself: it asks for every delay.
    if (kReset) {
      if (k.active(s)) k.load(k.output_at + k.by_time(s), h);
      publish_state(k);
    }
  }
  METHOD void finish(Block& k) {
#if BACKWARD
    give_back(k, 0);
    for (int m = M - 1; m >= 0 && k.args.d_initial_h; m--) {
      Real dh[4], outer[4];
      take(k, m - M, dh);
      load_outer(k, m - M, outer);
      EACH_UNIT dh[i] += outer[i];
      if (m == M - 1 && k.length > 0 && k.sees(0, 1)) EACH_UNIT dh[i] += h[i];
      k.store(k.args.d_initial_h + k.in_state(m, (long)M * k.step_h), dh);
    }
#else
    finish_forward(k);
#endif
  }

  METHOD void begin_backward(Block& k) {
    Gates<NarxGates>::begin_backward(k);
    clear(k);
  }
  // What step s sends to the states that it read.
  METHOD void give_back(Block& k, int s) const {
    if (!k.active(s)) return;
    EACH_DELAY {
      Real v[4];
      k.product(d, Shape0::KS, v);
      if (!k.sees(s, delay(d))) continue;
      if (kDropout) EACH_UNIT v[i] *= drop[i];
      add(k, s - delay(d), v);
    }
  }
  template <int PHASE> METHOD void backward(Block& k, int s) {
    Real dh[4], outer[4], state[4];
    if (kSumsX) k.load_x(s);
    if (s + 1 < (int)k.args.T) give_back(k, s + 1);
    take(k, s, dh);
    if (s + 1 < k.length && k.sees(s + 1, 1)) EACH_UNIT dh[i] += h[i];
    load_outer(k, s, outer);
    EACH_UNIT h[i] = 0, dh[i] += outer[i];
    split_kept(k, s, dh);
    fresh_again(k, s, state);
    EACH_UNIT dh[i] *= 1 - state[i] * state[i];  // (1')
    norm_backward(k, s, 0, dh);
    gradient(k, s, 0, dh);
    k.publish(0, dh);
  }
};

// Every delay is a row block of its own: forwards of the units that get, backwards of those that gave.
template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int row, int k) {
  const int own = own_unit(cta, row % kPlaces), other = any_unit(k), d = row / kPlaces;
  if (own < 0 || other < 0) return 0;
#if BACKWARD
  return element(args, e, other, d * H + own, D * H);
#else
  return element(args, e, own, d * H + other, D * H);
#endif
}
