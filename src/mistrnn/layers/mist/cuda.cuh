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

  METHOD void load_history(Block& k, int s) {
    EACH_DELAY if (BACKWARD || delay(d) != 1) k.past(s, delay(d), history[d]);
  }
  METHOD int first_step(Block& k) {
    k.load_x(0);
    if (kPrefetch && k.length > 0) load_history(k, 0);
    return 0;
  }

  METHOD void norm_extra(Block& k, int s, Real (&v)[D]) {
    if (!kNorm) return;
    Real mean = 0, square = 0;
    EACH_DELAY mean += v[d];
    mean /= D;
    EACH_DELAY square += (v[d] - mean) * (v[d] - mean);
    const Real scale = 1 / sqrt(square / D + Real(1e-5));
    const bool save = kSave && k.active(s) && k.tau == 0 && k.cta == 0;
    Real* saved = k.args.saved + k.at_step(s, kS);
    if (save) saved[kScales] = scale;
    EACH_DELAY {
      const Real normed = (v[d] - mean) * scale;
      if (save) saved[kNormed + d] = normed;
      v[d] = normed * extra_table(k, d)[I + 1] + extra_table(k, d)[I];
    }
  }

  template <int PHASE> METHOD void forward(Block& k, int s) {
    if (PHASE == 0) mix(k, s);
    else renew(k, s);
  }
  METHOD void mix(Block& k, int s) {
    Real a[D], r[4], q[4];
    const bool active = k.active(s);
    if (!kPrefetch && active) load_history(k, s);
    EACH_DELAY a[d] = k.product_extra(1, d, Shape0::KS) + extra_input(k, s, d);
    k.product(0, Shape0::KS, r);
    add_input(k, s, kR, r);
    norm_extra(k, s, a);
    norm(k, s, kR, r);
    Real top = a[0], total = 0;
    EACH_DELAY top = a[d] > top ? a[d] : top;
    EACH_DELAY a[d] = exp_of(a[d] - top), total += a[d];
    EACH_DELAY a[d] /= total;                                                           // (1)
    Real* saved = k.args.saved + k.at_step(s, kS);
    EACH_UNIT {
      r[i] = sigmoid_of(r[i]);                                                          // (2)
      Real m = 0;
      EACH_DELAY m += a[d] * (delay(d) == 1 ? h[i] : history[d][i]);                    // (3)
      q[i] = k.has(i) && active ? r[i] * m * drop[i] : Real(0);
      if (kSave && active && k.has(i)) saved[D + k.unit(i)] = r[i];
    }
    if (kSave && active && k.cta == 0)
      EACH_DELAY if (k.tau == d % 8) saved[d] = a[d];
    k.publish(0, q);
  }
  METHOD void renew(Block& k, int s) {
    Real v[4];
    k.product(0, Shape1::KS, v);
    add_input(k, s, kH, v);
    norm(k, s, kH, v);
    EACH_UNIT v[i] = tanh_of(v[i]);                                                     // (4)
    new_state(k, s, v);
    if (kPrefetch && k.active(s + 1)) load_history(k, s + 1);
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
  Real dm[4], later[D][4], a_later[D], state[4], outer[4], reset[4], a[D];

  METHOD Real* slot(Block& k, int s) const {
    return k.args.ring + ((k.e * RING + s % RING) * k.args.B + k.row) * H;
  }
  // What the sum (3') at step s needs of later steps, and the state itself.
  METHOD void load_later(Block& k, int s) {
    EACH_DELAY {
      const int at = s + delay(d);
      const bool reads = at >= 0 && k.active(at) && k.sees(at, delay(d));
      a_later[d] = reads ? k.args.saved[k.at_step(at, kS) + d] : Real(0);
      if (delay(d) == 1) continue;
      const Real* from = slot(k, at < 0 ? 0 : at);
      EACH_UNIT later[d][i] = reads && k.has(i) ? from[k.unit(i)] : Real(0);
    }
  }
  METHOD void load_state(Block& k, int s) {
    fresh_again(k, s, state);
    EACH_UNIT outer[i] = 0;
    add_outer(k, s, outer);
  }
  // What the gates at step s need.
  METHOD void load_mixture(Block& k, int s) {
    const bool active = k.active(s);
    const Real* saved = k.args.saved + k.at_step(s, kS);
    EACH_DELAY a[d] = active ? saved[d] : Real(0);
    EACH_UNIT reset[i] = active && k.has(i) ? saved[D + k.unit(i)] : Real(0);
    if (active) load_history(k, s);
  }
  METHOD void begin_backward(Block& k) {
    Gates<MistGates>::begin_backward(k);
    EACH_UNIT dm[i] = 0;
    EACH_DELAY EACH_UNIT history[d][i] = 0;
    if (kPrefetch && k.args.T > 0) load_later(k, (int)k.args.T - 1), load_state(k, (int)k.args.T - 1);
  }
  // (3') the sum over d of a_{s+d} dm_{s+d}
  METHOD void gather(Real (&dh)[4]) const {
    EACH_DELAY EACH_UNIT dh[i] += a_later[d] * (delay(d) == 1 ? dm[i] : later[d][i]);
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
    gather(dh);
    split_kept(k, s, dh);
    EACH_UNIT dh[i] *= 1 - state[i] * state[i];                                         // (4')
    norm_backward(k, s, kH, dh);
    gradient(k, s, kH, dh);
    k.publish(0, dh);
    if (kPrefetch) load_mixture(k, s);
  }
  METHOD void mix_backward(Block& k, int s) {
    Real dq[4], da[D], dr[4];
    const bool active = k.active(s);
    if (!kPrefetch) load_mixture(k, s);
    k.product(0, Shape0::KS, dq);
    EACH_DELAY da[d] = 0;
    Real* mixed = k.args.mixed + k.at_step(s, H);
    Real* ring = slot(k, s);
    EACH_UNIT {
      Real m = 0;
      EACH_DELAY m += a[d] * history[d][i];                                             // (3) again
      dq[i] = active && k.has(i) ? dq[i] * drop[i] : Real(0);
      dm[i] = dq[i] * reset[i];
      EACH_DELAY da[d] += k.has(i) ? dm[i] * history[d][i] : Real(0);                   // (3')
      dr[i] = dq[i] * m * reset[i] * (1 - reset[i]);                                    // (2')
      if (k.has(i)) mixed[k.unit(i)] = active ? reset[i] * m * drop[i] : Real(0);
      if (k.has(i)) ring[k.unit(i)] = dm[i];
    }
    if (kPrefetch && s > 0) load_later(k, s - 1), load_state(k, s - 1);
    k.add_over_units(da);
    Real mean = 0;
    EACH_DELAY mean += a[d] * da[d];
    EACH_DELAY da[d] = active ? a[d] * (da[d] - mean) : Real(0);                        // (1')
    if (kNorm) norm_extra_backward(k, s, da);
    norm_backward(k, s, kR, dr);
    gradient(k, s, kR, dr);
    k.publish(0, dr);
    EACH_DELAY if (k.there && k.tau == d % 8) {
      extra_gradient(k, s, d / 8, d, da[d]);
      k.publish_extra(1, d, da[d]);
    }
  }
  METHOD void norm_extra_backward(Block& k, int s, Real (&v)[D]) {
    const Real* saved = k.args.saved + k.at_step(s, kS);
    Real mean = 0, slope = 0, normed[D];
    EACH_DELAY {
      normed[d] = k.active(s) ? saved[kNormed + d] : Real(0);
      if (k.tau == d % 8) sum_extra[d / 8][0] += v[d], sum_extra[d / 8][kKinds - 1] += v[d] * normed[d];
      v[d] *= extra_table(k, d)[I + 1];
      mean += v[d] / D, slope += v[d] * normed[d] / D;
    }
    const Real scale = k.active(s) ? saved[kScales] : Real(0);
    EACH_DELAY v[d] = scale * (v[d] - mean - normed[d] * slope);
  }
  METHOD void finish_initial(Block& k) {
    for (int back = 1; back <= M && k.args.d_initial_h; back++) {
      Real dh[4] = {0, 0, 0, 0};
      load_later(k, -back);
      gather(dh);
      if (back == 1) {
        Real sent[4];
        sent_back(k, -1, Shape1::KS, sent);
        EACH_UNIT dh[i] += sent[i];
      }
      add_outer(k, -back, dh);
      EACH_UNIT if (k.has(i)) k.args.d_initial_h[k.e * M * k.args.B * H + k.in_state(M - back) + k.unit(i)] = dh[i];
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
