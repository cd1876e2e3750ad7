// The fused GPU form of the simple NARX RNN; equation numbers as in reference.py, primed in the backward pass.
//
// A state is multiplied once, when it is there, by the weights of all delays, and each product waits in a ring for the step
// that it belongs to; backwards a gradient does the same on its way to earlier states. A thread keeps the sums of its own
// units, so that nobody waits for anybody.
#pragma once

#include "kernels/cuda/persistent/recurrence.cuh"

struct NarxGates {
  static constexpr int kGates = 1, kGradients = 1, kLagRows = 0, kGroups = 1;
  static constexpr int kSaved = 1, kFreshState = 0, kState = -1;  // the record: the new state
  static constexpr bool kPublishesAll = true;  // a reset hides no state from `give`, which asks for every delay itself
  static METHOD constexpr int gate_row(int) { return 0; }
  static METHOD constexpr int gradient_column(int) { return 0; }
};

struct Narx : OneSavedVector<NarxGates> {
  static constexpr bool kAllBegin = true;
  Real* ring;  // the sums under way of M steps

  METHOD void begin(Block& k) {
    Gates<NarxGates>::begin(k);
    const long warp = ((k.e * (gridDim.x / C) + blockIdx.x / C) * C + k.cta) * W + k.warp;
    ring = k.args.workspace + (warp * M * 32 + k.lane) * kValues;
    Values zeros;
    EACH_VALUE zeros[i] = 0;
    for (int m = 0; k.has_units && m < M; m++) store_all(slot_of(m), zeros);
  }
  METHOD Real* slot_of(int s) const { return ring + (s % M + M) % M * (32 * kValues); }
  METHOD void take(int s, Values& v) const {  // and leave zeros for the step that has the place next
    Values zeros;
    EACH_VALUE zeros[i] = 0;
    load_all(slot_of(s), v);
    store_all(slot_of(s), zeros);
  }
  METHOD void add(int s, const Values& v) const {
    Values sum;
    load_all(slot_of(s), sum);
    EACH_VALUE sum[i] += v[i];
    store_all(slot_of(s), sum);
  }
  // What the state of step s gives to later steps, by the product that was just made.
  METHOD void give(Block& k, int s, Real (&z)[D][kValues]) const {
    EACH_DELAY {
      const int later = s + delay(d);
      if (later < 0) continue;
      if (kReset || kLengths)
        EACH_VALUE if (later >= k.end(row_of(i)) || !k.can_read(later, delay(d), row_of(i))) z[d][i] = 0;
      if (later < (int)k.args.T) add(later, z[d]);
    }
  }

  // States from before the run are multiplied first, unless all are zero.
  bool any_before;
  METHOD void begin_forward(Block& k) {
    bool any = false;
    for (long n = threadIdx.x; n < (long)M * R * H; n += KS * W * 32) {
      const long row = (long)(blockIdx.x / C) * R + n / H % R;
      if (row < k.args.B && k.args.initial_h[k.e * k.args.initial_h_trial + (n / H / R * k.args.B + row) * H + n % H] != 0)
        any = true;
    }
    any_before = any_in_block(any);
    if (!k.has_units) return;
    EACH_VALUE h[i] = 0;
    if (any_before) k.load_state(k.args.initial_h, k.args.initial_h_trial, 0, h);
    publish_state(k);
  }
  METHOD int first_step(Block& k) { return any_before ? 1 - M : 0; }

  template <int PHASE> METHOD void read_ahead(Block& k, int s) {
    if (BACKWARD) load(k, s - 1);
    else if (s >= 0) load_input(k, s);
  }
  // The product that comes before step s is that of the state before it.
  template <int PHASE> METHOD void forward(Block& k, int s, Real (&z)[D][kValues]) {
    give(k, s - 1, z);
    if (s < 0) {
      k.load_state(k.args.initial_h, k.args.initial_h_trial, M + s, h);
      publish_state(k);
      return k.arrive();
    }
    if (s == 0) k.load_state(k.args.initial_h, k.args.initial_h_trial, M - 1, h);
    mask_resets(k, s, h);
    Values v;
    take(s, v);
    add_input(k, 0, v);
    norm(k, s, 0, v);
    EACH_VALUE v[i] = tanh_of(v[i]);  // (1)
    new_state(k, s, v);
  }
  METHOD void finish(Block& k, Real (&z)[D][kValues]) {
    if (!BACKWARD) return finish_forward(k);
    if (k.args.T > 0) give_back(k, 0, z);
    for (int m = M - 1; m >= 0 && k.args.d_initial_h; m--) {
      Values dh;
      take(m - M, dh);
      load_d_output(k, m - M, d_out);
      EACH_VALUE {
        dh[i] += d_out[i];
        if (m == M - 1 && k.end(row_of(i)) > 0 && k.can_read(0, 1, row_of(i))) dh[i] += h[i];
      }
      k.store_state(k.args.d_initial_h, M, m, dh);
    }
  }

  // What step s sends to the states that it read.
  METHOD void give_back(Block& k, int s, Real (&z)[D][kValues]) const {
    EACH_DELAY {
      EACH_VALUE {
        if (kDropout) z[d][i] *= drop[i];
        if (!k.is_active(s, i) || !k.can_read(s, delay(d), row_of(i))) z[d][i] = 0;
      }
      add(s - delay(d), z[d]);
    }
  }
  template <int PHASE> METHOD void backward(Block& k, int s, Real (&z)[D][kValues]) {
    Values dh;
    if (s + 1 < (int)k.args.T) give_back(k, s + 1, z);
    take(s, dh);
    EACH_VALUE {
      if (s + 1 < k.end(row_of(i)) && k.can_read(s + 1, 1, row_of(i))) dh[i] += h[i];
      dh[i] += d_out[i];
      h[i] = 0;
    }
    split_zoneout(k, s, dh);
    EACH_VALUE dh[i] *= 1 - state[i] * state[i];  // (1')
    norm_backward(k, s, 0, dh);
    clear_padding(k, s, dh);
    k.publish(0, dh);
    k.arrive();
    gradient(k, s, 0, dh);
  }
};

// Every delay is a row block of its own: forwards of the units that get, backwards of those that gave.
template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k) {
  const int own = cta * kUnits + local, other = unit_at(k);
  if (own >= H || other < 0) return 0;
  return BACKWARD ? element(args, e, other, block * H + own, D * H) : element(args, e, own, block * H + other, D * H);
}
