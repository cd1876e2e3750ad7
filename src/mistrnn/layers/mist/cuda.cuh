// The fused GPU form of MIST; equation numbers as in reference.py, primed in the backward pass.
//
// Saved for the backward pass: a_t [D] and r_t [H]. The mixed history is computed again from the states.
#pragma once

#include "kernels/cuh/recurrence.cuh"

struct MistGates {
  static constexpr int kGates = 2, kGradients = 2, kExtra = D, kGroups = 1, kBlocks = 3, kSaved = D + H;
  static constexpr bool kSavesFresh = true;
  enum { kR, kH };
  static METHOD constexpr int gate_row(int g) { return D + g * H; }
  static METHOD constexpr int gradient_column(int g) { return D + g * H; }
  static METHOD constexpr int norm_block(int g) { return 1 + g; }
};

struct Mist : Gates<MistGates>, MistGates {
  Real history[D][4];  // the states that step s mixes, read one step ahead
  Real a[kSlots];      // the mixture weights of step s that are this lane's (see Block::add_to_owners)

  METHOD void load_history(Block& k, int s) {
    EACH_DELAY if (BACKWARD || delay(d) != 1) k.past(s, delay(d), history[d]);
  }
  METHOD int first_step(Block& k) {
    k.load_x(0);
    if (kPrefetch && k.length > 0) load_history(k, 0);
    return 0;
  }
#define EACH_SLOT _Pragma("unroll") for (int slot = 0, d = threadIdx.x & 7; slot < kSlots; slot++, d += 8)

  static METHOD Real over_lanes(Real v) {  // the sum over the eight lanes of a sequence
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) v += from_other_lane(v, distance);
    return v;
  }
  METHOD void norm_extra(Block& k, int s, Real (&v)[kSlots]) {
    if (!kNorm) return;
    Real mean = 0, square = 0;
    EACH_SLOT if (d < D) mean += v[slot];
    mean = over_lanes(mean) / D;
    EACH_SLOT if (d < D) v[slot] -= mean, square += v[slot] * v[slot];
    const Real scale = 1 / sqrt(over_lanes(square) / D + Real(1e-5));
    const bool save = kSave && k.active(s) && k.owns_extra() && k.cta == 0;
    if (save && k.tau == 0) k.saved(s)[kScales] = scale;
    EACH_SLOT if (d < D) {
      v[slot] *= scale;
      if (save) k.saved(s)[kNormed + d] = v[slot];
      v[slot] = v[slot] * extra_table(k, d)[I + 1] + extra_table(k, d)[I];
    }
  }

  template <int PHASE> METHOD void forward(Block& k, int s) {
    if (PHASE == 0) mix(k, s);
    else renew(k, s);
  }
  METHOD void mix(Block& k, int s) {
    Real r[4], m[4] = {0, 0, 0, 0};
    const bool active = k.active(s);
    if (!kPrefetch && active) load_history(k, s);
    EACH_SLOT a[slot] = d < D ? k.product_extra(1, d, Shape0::KS) + extra_input(k, s, d) : Real(-1e30);
    k.product(0, Shape0::KS, r);
    add_input(k, s, kR, r);
    norm_extra(k, s, a);
    norm(k, s, kR, r);
    Real top = a[0], total = 0;
    EACH_SLOT top = a[slot] > top ? a[slot] : top;
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
      const Real other = from_other_lane(top, distance);
      top = other > top ? other : top;
    }
    EACH_SLOT a[slot] = exp_of(a[slot] - top), total += a[slot];
    total = reciprocal(over_lanes(total));
    EACH_SLOT a[slot] *= total;                                                         // (1)
    EACH_DELAY {
      const Real weight = k.from_owner(a, d);
      EACH_UNIT m[i] += weight * (delay(d) == 1 ? h[i] : history[d][i]);                // (3)
    }
    EACH_UNIT r[i] = sigmoid_of(r[i]);                                                  // (2)
    if (kSave && active) {
      k.store(k.saved(s) + D + k.first_unit(), r);
      if (k.owns_extra() && k.cta == 0) EACH_SLOT if (d < D) k.saved(s)[d] = a[slot];
    }
    EACH_UNIT {
      m[i] *= r[i];
      if (kDropout) m[i] *= drop[i];
      if (!active) m[i] = 0;
    }
    k.publish(0, m);
  }
  METHOD void renew(Block& k, int s) {
    Real v[4];
    k.product(0, Shape1::KS, v);
    add_input(k, s, kH, v);
    norm(k, s, kH, v);
    EACH_UNIT v[i] = tanh_of(v[i]);                                                     // (4)
    new_state(k, s, v);
    if (kPrefetch && s + 1 < (int)k.args.T && k.active(s + 1)) load_history(k, s + 1);
    k.load_x(s + 1);
  }
  METHOD void finish(Block& k) {
#if BACKWARD
    finish_initial(k);
#else
    finish_forward(k);
#endif
  }

  // Backwards. dm of the newest RING steps lies in a ring; that of the very last is here.
  Real dm[4], later[D][4], a_later[kSlots], state[4], outer[4], reset[4];

  METHOD Real* ring(Block& k, int s) const { return k.args.ring + k.in_state(s % RING, (long)RING * k.step_h); }
  // What the sum (3') at step s needs of later steps.
  METHOD void load_later(Block& k, int s) {
    EACH_SLOT {
      a_later[slot] = 0;
      int ahead = 0;
#pragma unroll
      for (int n = 0; n < D; n++) if (n == d) ahead = delay(n);
      const int at = s + ahead;
      if (d < D && at >= 0 && at < k.length && k.sees(at, ahead)) a_later[slot] = k.saved(at)[d];
    }
    EACH_DELAY {
      const int at = s + delay(d);
      if (delay(d) == 1) continue;
      EACH_UNIT later[d][i] = 0;
      if (at >= 0 && at < k.length) k.load(ring(k, at), later[d]);
    }
  }
  METHOD void load_state(Block& k, int s) {
    fresh_again(k, s, state);
    load_outer(k, s, outer);
  }
  // What the gates at step s need.
  METHOD void load_mixture(Block& k, int s) {
    if (!k.active(s)) return;
    EACH_SLOT a[slot] = d < D ? k.saved(s)[d] : Real(0);
    k.load(k.saved(s) + D + k.first_unit(), reset);
    load_history(k, s);
  }
  METHOD void begin_backward(Block& k) {
    Gates<MistGates>::begin_backward(k);
    EACH_UNIT dm[i] = reset[i] = 0;
    EACH_SLOT a[slot] = 0;
    EACH_DELAY EACH_UNIT history[d][i] = 0;
    if (kPrefetch && k.args.T > 0) load_later(k, (int)k.args.T - 1), load_state(k, (int)k.args.T - 1);
  }
  // (3') the sum over d of a_{s+d} dm_{s+d}
  METHOD void gather(Block& k, Real (&dh)[4]) const {
    EACH_DELAY {
      const Real weight = k.from_owner(a_later, d);
      EACH_UNIT dh[i] += weight * (delay(d) == 1 ? dm[i] : later[d][i]);
    }
  }

  template <int PHASE> METHOD void backward(Block& k, int s) {
    if (PHASE == 0) renew_backward(k, s);
    else mix_backward(k, s);
  }
  METHOD void renew_backward(Block& k, int s) {
    Real dh[4];
    if (!kPrefetch) load_later(k, s), load_state(k, s);
    if (kSumsX) k.load_x(s);
    sent_back(k, s, Shape1::KS, dh);
    EACH_UNIT dh[i] += outer[i];
    gather(k, dh);
    split_kept(k, s, dh);
    EACH_UNIT dh[i] *= 1 - state[i] * state[i];                                         // (4')
    norm_backward(k, s, kH, dh);
    gradient(k, s, kH, dh);
    k.publish(0, dh);
    if (kPrefetch) load_mixture(k, s);
  }
  METHOD void mix_backward(Block& k, int s) {
    Real dq[4], m[4] = {0, 0, 0, 0}, da[D], da_own[kSlots], mean = 0;
    const bool active = k.active(s);
    if (!k.in_cell && !kNorm) return k.sync_published();  // the one of add_to_owners
    if (!kPrefetch) load_mixture(k, s);
    k.product(0, Shape0::KS, dq);
    EACH_UNIT {
      if (kDropout) dq[i] *= drop[i];
      if (!active) dq[i] = 0;
      dm[i] = dq[i] * reset[i];
    }
    k.store(ring(k, s), dm);
    EACH_DELAY {
      const Real weight = k.from_owner(a, d);
      da[d] = 0;
      EACH_UNIT {
        m[i] += weight * history[d][i];                                                 // (3) again
        if (k.has(i)) da[d] += dm[i] * history[d][i];  // (3')
      }
    }
    EACH_UNIT {
      m[i] *= reset[i];
      dq[i] *= m[i] * (1 - reset[i]);                                                   // (2')
      if (kDropout) m[i] *= drop[i];
    }
    k.store(k.args.mixed + (k.e * k.args.T * k.args.B + k.row) * H + k.first_unit() + k.by_step(s), m);
    if (kPrefetch && s > 0) load_later(k, s - 1), load_state(k, s - 1);
    k.add_to_owners(da, da_own);
    EACH_SLOT mean += a[slot] * da_own[slot];
    mean = over_lanes(mean);
    EACH_SLOT da_own[slot] = active ? a[slot] * (da_own[slot] - mean) : Real(0);        // (1')
    norm_extra_backward(k, s, da_own);
    norm_backward(k, s, kR, dq);
    gradient(k, s, kR, dq);
    k.publish(0, dq);
    if (k.owns_extra()) EACH_SLOT if (d < D) {
      extra_gradient(k, s, slot, d, da_own[slot]);
      k.publish_extra(1, d, da_own[slot]);
    }
  }
  METHOD void norm_extra_backward(Block& k, int s, Real (&v)[kSlots]) {
    if (!kNorm) return;
    Real mean = 0, slope = 0, normed[kSlots];
    EACH_SLOT {
      normed[slot] = d < D && k.active(s) ? k.saved(s)[kNormed + d] : Real(0);
      sum_extra[slot][0] += v[slot], sum_extra[slot][kKinds - 1] += v[slot] * normed[slot];
      v[slot] *= d < D ? extra_table(k, d)[I + 1] : Real(0);
      mean += v[slot], slope += v[slot] * normed[slot];
    }
    mean = over_lanes(mean) / D, slope = over_lanes(slope) / D;
    const Real scale = k.active(s) ? k.saved(s)[kScales] : Real(0);
    EACH_SLOT v[slot] = scale * (v[slot] - mean - normed[slot] * slope);
  }
  METHOD void finish_initial(Block& k) {
    for (int back = 1; back <= M && k.args.d_initial_h; back++) {
      Real dh[4], sent[4];
      load_outer(k, -back, dh);
      load_later(k, -back);
      gather(k, dh);
      if (back == 1) {
        sent_back(k, -1, Shape1::KS, sent);
        EACH_UNIT dh[i] += sent[i];
      }
      k.store(k.args.d_initial_h + k.in_state(M - back, (long)M * k.step_h), dh);
    }
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int row, int k) {
#if BACKWARD
  const int from = own_unit(cta, row);
  if (PHASE == 0) return element(args, e, any_unit(k) < 0 ? -1 : D + H + any_unit(k), from, H);
  if (k >= C * kPlaces) return element(args, e, k - C * kPlaces, from, H);
  return element(args, e, any_unit(k) < 0 ? -1 : D + any_unit(k), from, H);
#else
  const int from = any_unit(k);
  if (row >= kPlaces) return element(args, e, row - kPlaces, from, H);
  const int unit = own_unit(cta, row);
  return element(args, e, unit < 0 ? -1 : D + (PHASE == 0 ? 0 : H) + unit, from, H);
#endif
}
