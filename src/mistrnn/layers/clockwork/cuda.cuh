// The fused GPU form of the Clockwork RNN; equation numbers as in reference.py, primed in the backward pass.
//
// All groups are computed at all steps, and those that do not tick keep their state.
#pragma once

#include "kernels/cuda/persistent/one_gate.cuh"

DEVICE int period(int unit) {
  int found = 1;
  EACH_DELAY if (unit / (H / D) == d) found = delay(d);
  return found;
}

// The clock modulo a period of at most 4096, in 32 bits: a division of 64 bits is a call, for which registers would be saved.
DEVICE int remainder(long clock, int period) {
  const int high = (int)(clock >> 32) % period, wrapped = (int)(0xffffffffu % (unsigned)period + 1);
  const int low = (int)((unsigned)clock % (unsigned)period);
  return ((high + period) * wrapped + low) % period;
}

struct Clockwork : OneGateCell {
  // Of each value: its unit's period times 2^16, plus its sequence's clock modulo that period.
  unsigned clocks[kValues];

  METHOD void begin(Block& k) {
    OneGateCell::begin(k);
    EACH_VALUE {
      const int j = row_of(i), own = period(k.unit + unit_of(i));
      const long clock = k.in_batch(j) ? k.args.clock[k.e * k.args.clock_trial + k.row + sequence_of(j)] : 0;
      const long first = BACKWARD ? clock + k.args.T - 1 : clock;
      clocks[i] = (unsigned)own << 16 | (unsigned)remainder(first, own);
    }
  }
  // Whether a unit ticks at this step, asked once for each step: the clock moves on.
  METHOD bool ticks(Block& k, int s, int i) {
    const int j = row_of(i);
    const unsigned own = clocks[i] >> 16, clock = clocks[i] & 0xffff;
    if (BACKWARD) clocks[i] += clock == 0 ? own - 1 : -1u;
    else clocks[i] -= clock == own - 1 ? own - 1 : -1u;
    if (kReset && k.active(s, j) && k.origin(s, j) >= 0) return (unsigned)(s - k.origin(s, j)) % own == 0;
    return clock == 0;
  }

  template <int PHASE> METHOD void forward(Block& k, int s, Real (&z)[1][kValues]) {
    Values& v = z[0];
    add_input(k, 0, v);
    norm(k, s, 0, v);
    EACH_VALUE v[i] = ticks(k, s, i) ? tanh_of(v[i]) : h[i];  // (1) (2)
    new_state(k, s, v);
  }
  template <int PHASE> METHOD void backward(Block& k, int s, Real (&z)[1][kValues]) {
    Values& dh = z[0];
    state_gradient(k, s, dh);
    EACH_VALUE {
      const bool ticked = ticks(k, s, i);
      if (!ticked) h[i] += dh[i];                                    // (2')
      dh[i] = ticked ? dh[i] * (1 - state[i] * state[i]) : Real(0);  // (1')
    }
    pass_gradient(k, s, dh);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k) {
  const int own = cta * kUnits + local, other = unit_at(k);
  if (own >= H || other < 0 || period(BACKWARD ? other : own) > period(BACKWARD ? own : other)) return 0;  // severed
  return gate_weight<OneGate>(args, e, cta, block, local, k);
}
