// The fused GPU form of MIST; equation numbers as in reference.py, primed in the backward pass.
//
// The record of a step holds its state, and for the backward pass r; a_t lies in the stream of the delays. The mixed history
// is computed again from the states.
#pragma once

#include "kernels/cuda/persistent/recurrence.cuh"

struct MistGates {
  static constexpr int kGates = 2, kGradients = 2, kLagRows = D, kGroups = 1;
  static constexpr int kState = 0, kFreshState = kMixture ? 2 : -1, kSaved = kMixture ? 3 : 2;  // the record: h, r, the new state
  static constexpr bool kPublishesAll = false;
  static METHOD constexpr int gate_row(int g) { return D + g * H; }
  static METHOD constexpr int gradient_column(int g) { return D + g * H; }
};

struct Mist : Gates<MistGates> {
  enum { kR, kH };
  typedef Real OfDelays[kSlots][kRows];  // numbers of the delays that are this lane's

  static constexpr int kPrefetchSteps = Block::kPrefetchSteps;
  Values history[D];  // the states that the next step mixes
  OfDelays a;

  METHOD void load_history(Block& k, int s) {
    EACH_DELAY {
      if (!BACKWARD && delay(d) == 1) continue;
      load_all(k.saved(s - delay(d), 0), history[d]);
      if (kReset) EACH_VALUE if (k.is_active(s, i) && !k.can_read(s, delay(d), row_of(i))) history[d][i] = 0;
    }
  }
  METHOD void begin_forward(Block& k) {
    in_batches(
        M, [&](int m, Values& v) { k.load_state(k.args.initial_h, k.args.initial_h_trial, m, v); },
        [&](int m, Values& v) { store_all(k.saved(m - M, 0), v); });
    find_own_delays();
    load_history(k, 0);
    Gates<MistGates>::begin_forward(k);
    share_softmax(k);
  }
  // The delays that are this lane's.
  int own_delay[kSlots];
  METHOD void find_own_delays() {
    EACH_SLOT {
      own_delay[slot] = 0;
#pragma unroll
      for (int n = 0; n < D; n++) if (n == d) own_delay[slot] = delay(n);
      make_opaque(own_delay[slot]);
    }
  }
  // Tell memory of what is far away: of a vector of the warp for each delay, the lanes that have the delay take 128 bytes each.
  METHOD void prefetch_warp(Block& k, const Real* vector) const {
#pragma unroll
    for (int n = 0; n < kSavedValues * (int)sizeof(Real) / 16; n++) prefetch((const char*)vector + ((k.lane & 3) * 128 + n * 512));
  }
  // ... the states that step s will mix, ...
  METHOD void prefetch_history(Block& k, int s) const {
    EACH_SLOT if (own_delay[slot] > kPrefetchSteps) prefetch_warp(k, k.saved(s - own_delay[slot], 0) - k.place);
  }
  // ... and backwards what the sum (3') will need.
  METHOD void prefetch_later(Block& k, int s) const {
    EACH_SLOT if (own_delay[slot] > kPrefetchSteps) prefetch_warp(k, dm_of(s + own_delay[slot]) - k.lane * kValues);
  }
  METHOD int first_step(Block&) { return 0; }
  template <int PHASE> METHOD void read_ahead(Block& k, int s) {
    if (!BACKWARD) {
      if (PHASE == 0) k.load_x(s), load_projected(k, s, kR), load_projected_lags(k, s);
      else load_projected(k, s, kH), load_history(k, s + 1), prefetch_history(k, s + kPrefetchSteps);
    } else if (PHASE == 0) {
      load_mixture(k, s);
      if (s >= kPrefetchSteps) {
        prefetch(k.saved(s - kPrefetchSteps, 1));
        // While memory has little else to do, that is; at 50 trials of one block each it costs more than it brings.
        if (C > 1) prefetch_history(k, s - kPrefetchSteps), prefetch_later(k, s - kPrefetchSteps);
        else prefetch(k.saved(s - kPrefetchSteps - M, 0));
      }
    } else {
      if (s > 0) load_later(k, s - 1);
      take_softmax(k, s);
      if (s > 0) load_step(k, s - 1);
    }
  }
  METHOD void store_saved_lags(Block& k, int s, int part, const OfDelays& v) const {
    if (k.warp == 0 && k.cta == 0)
      EACH_SLOT EACH_ROW k.saved_lags(s, part)[slot * kSavedSequences + j] = v[slot][j];
  }
  METHOD void load_saved_lags(Block& k, int s, int part, OfDelays& v) const {
    EACH_SLOT EACH_ROW v[slot][j] = k.saved_lags(s, part)[slot * kRows + j];
  }

  METHOD void norm_lags(Block& k, int s, OfDelays& v) {
    if (!kNorm) return;
    OfDelays scale;
    EACH_ROW {
      Real mean = 0, square = 0;
      EACH_SLOT if (d < D) mean += v[slot][j];
      mean = Block::sum_over_lanes(mean) / D;
      EACH_SLOT if (d < D) v[slot][j] -= mean, square += v[slot][j] * v[slot][j];
      square = Block::sum_over_lanes(square);
      EACH_SLOT scale[slot][j] = 1 / sqrt(square / D + Real(1e-5)), v[slot][j] *= scale[slot][j];
    }
    if (kSave) store_saved_lags(k, s, 1, v), store_saved_lags(k, s, 2, scale);
    EACH_ROW EACH_SLOT if (d < D) v[slot][j] = v[slot][j] * lag_parameters[slot][kParameterRows - 1] + lag_parameters[slot][0];
  }

  template <int PHASE> METHOD void forward(Block& k, int s, Real (&z)[1][kValues]) {
    if (PHASE == 0) mix(k, s, z[0]);
    else renew(k, s, z[0]);
  }
  // What each warp's units give to the softmax, or to its gradient, goes around with what is published, to be added up by all.
  int which = 0;
  METHOD Real* shares(Block& k, int warp) const {
    return k.softmax_buffer + ((which * C * W + warp) * 32 + k.lane) * kSoftmaxWidth;
  }
  METHOD void share(Block& k, const OfDelays& own) {
    EACH_SLOT EACH_ROW k.broadcast(shares(k, k.cta * W + k.warp) + slot * kRows + j, own[slot][j], k.mbarriers + k.buffer);
    k.sent += 32 * kSoftmaxWidth * (int)sizeof(Real);
  }
  METHOD void add_shares(Block& k, OfDelays& v) {
#pragma unroll 9
    for (int warp = 0; warp < C * W; warp++) EACH_SLOT EACH_ROW v[slot][j] += shares(k, warp)[slot * kRows + j];
    which ^= 1;
  }
  // ... of the states that were just published.
  METHOD void share_softmax(Block& k) {
    OfDelays own;
    sync_warp();
    softmax.add_own(k, own);
    share(k, own);
  }
  METHOD void mix(Block& k, int s, Values& r) {
    Values m;
    EACH_SLOT EACH_ROW a[slot][j] = lag_input(k, slot, j);
    add_shares(k, a);
    EACH_SLOT EACH_ROW if (d >= D) a[slot][j] = Real(-3.4e38);  // as low as float32 goes
    add_input(k, kR, r);
    norm_lags(k, s, a);
    norm(k, s, kR, r);
    EACH_ROW {
      Real top = a[0][j];
      EACH_SLOT top = a[slot][j] > top ? a[slot][j] : top;
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        const Real other = shuffle_xor(top, distance);
        top = other > top ? other : top;
      }
      EACH_SLOT a[slot][j] = exp_of(a[slot][j] - top);
    }
    // Everyone gets all weights anyway, so that everyone adds them up, and divides in the end.
    Rows total;
    EACH_ROW total[j] = 0;
    EACH_VALUE m[i] = 0;
    EACH_DELAY {
      Rows weight;
      EACH_ROW weight[j] = k.from_owner(a, d, j), total[j] += weight[j];
      EACH_VALUE m[i] += weight[row_of(i)] * (delay(d) == 1 ? h[i] : history[d][i]);    // (3)
    }
    EACH_ROW {
      total[j] = reciprocal(total[j]);
      EACH_SLOT a[slot][j] *= total[j];                                                 // (1)
    }
    EACH_VALUE r[i] = sigmoid_of(r[i]);                                                 // (2)
    EACH_VALUE {
      m[i] *= r[i] * total[row_of(i)];
      if (kDropout) m[i] *= drop[i];
    }
    k.publish(0, m);
    k.arrive();
    if (kSave) store_all(k.saved(s, 1), r), store_saved_lags(k, s, 0, a);
  }
  METHOD void renew(Block& k, int s, Values& v) {
    add_input(k, kH, v);
    norm(k, s, kH, v);
    EACH_VALUE v[i] = tanh_of(v[i]);                                                    // (4)
    new_state(k, s, v, [&] { share_softmax(k); });
  }
  template <int ROW_BLOCKS> METHOD void finish(Block& k, Real (&z)[ROW_BLOCKS][kValues]) {
    if (BACKWARD) return finish_initial(k, z[0]);
    finish_forward(k);
    OfDelays zeros;  // no step after the last reads a state
    EACH_SLOT EACH_ROW zeros[slot][j] = 0;
    for (int m = 0; kSave && m < M; m++) store_saved_lags(k, (int)k.args.T + m, 0, zeros);
  }

  // Backwards. dm of all steps lies in a stream of its own, with zeros for M steps after the last; that of the very last
  // step that was computed is here, too.
  Values dm, later[D], state, d_out, reset;
  OfDelays a_later;
  Softmax::Gradient d_softmax;  // of the step that was computed last
  Real* dm_stream;

  METHOD Real* dm_of(int s) const { return dm_stream + (long)s * (32 * kValues); }
  // What the sum (3') at step s needs of later steps.
  METHOD void load_later(Block& k, int s) {
    EACH_SLOT EACH_ROW {
      const int at = s + own_delay[slot];
      a_later[slot][j] = k.saved_lags(at, 0)[slot * kRows + j];
      if (d >= D || ((kLengths || kReset) && (at >= k.end(j) || !k.can_read(at, own_delay[slot], j)))) a_later[slot][j] = 0;
    }
    EACH_DELAY if (delay(d) != 1) load_all(dm_of(s + delay(d)), later[d]);
  }
  // The same for a step before the first.
  METHOD void load_later_before(Block& k, int s) {
    EACH_SLOT EACH_ROW {
      const int at = s + own_delay[slot];
      a_later[slot][j] = 0;
      if (d < D && at >= 0 && at < k.end(j) && k.can_read(at, own_delay[slot], j))
        a_later[slot][j] = k.saved_lags(at, 0)[slot * kRows + j];
    }
    EACH_DELAY {
      EACH_VALUE later[d][i] = 0;
      if (delay(d) != 1 && s + delay(d) >= 0) load_all(dm_of(s + delay(d)), later[d]);
    }
  }
  METHOD void load_step(Block& k, int s) {
    load_all(k.saved(s, kMixture ? 2 : 0), state);
    load_d_output(k, s, d_out);
    k.load_x(s);
  }
  // What the gates at step s need.
  METHOD void load_mixture(Block& k, int s) {
    load_saved_lags(k, s, 0, a);
    load_all(k.saved(s, 1), reset);
    load_history(k, s);
  }
  METHOD void begin_backward(Block& k) {
    Gates<MistGates>::begin_backward(k);
    const long warp = ((k.e * (gridDim.x / C) + blockIdx.x / C) * C + k.cta) * W + k.warp;
    dm_stream = k.args.workspace + (warp * (k.args.T + M) * 32 + k.lane) * kValues;
    make_opaque(dm_stream);
    OfDelays zeros;
    EACH_SLOT EACH_ROW zeros[slot][j] = 0;
    softmax.take(k, zeros, d_softmax);
    EACH_VALUE dm[i] = 0;
    for (int m = 0; m < M; m++) store_all(dm_of((int)k.args.T + m), dm);
    find_own_delays();
    if (k.args.T > 0) load_later(k, (int)k.args.T - 1), load_step(k, (int)k.args.T - 1);
  }
  // (3') the sum over d of a_{s+d} dm_{s+d}
  METHOD void state_gradient(Block& k, Values& dh) const {
    EACH_DELAY {
      Rows weight;
      EACH_ROW weight[j] = k.from_owner(a_later, d, j);
      EACH_VALUE dh[i] += weight[row_of(i)] * (delay(d) == 1 ? dm[i] : later[d][i]);
    }
  }

  template <int PHASE> METHOD void backward(Block& k, int s, Real (&z)[1][kValues]) {
    if (PHASE == 0) renew_backward(k, s, z[0]);
    else mix_backward(k, s, z[0]);
  }
  METHOD void renew_backward(Block& k, int s, Values& dh) {
    softmax.send_back(k, d_softmax, dh);
    from_next_step(k, s, dh);
    EACH_VALUE dh[i] += d_out[i];
    state_gradient(k, dh);
    split_zoneout(k, s, dh);
    EACH_VALUE dh[i] *= 1 - state[i] * state[i];                                        // (4')
    norm_backward(k, s, kH, dh);
    clear_padding(k, s, dh);
    k.publish(0, dh);
    k.arrive();
    gradient(k, s, kH, dh);
  }
  METHOD void mix_backward(Block& k, int s, Values& dq) {
    Values m;
    Real da[D][kRows];
    OfDelays da_own;
    EACH_VALUE {
      if (kDropout) dq[i] *= drop[i];
      if (!k.is_active(s, i)) dq[i] = reset[i] = 0;
      dm[i] = dq[i] * reset[i];
      m[i] = 0;
    }
    EACH_DELAY {
      Rows weight;
      EACH_ROW weight[j] = k.from_owner(a, d, j), da[d][j] = 0;
      EACH_VALUE {
        m[i] += weight[row_of(i)] * history[d][i];                                      // (3) again
        da[d][row_of(i)] += dm[i] * history[d][i];                                      // (3')
      }
    }
    EACH_VALUE {
      m[i] *= reset[i];
      dq[i] *= m[i] * (1 - reset[i]);                                                   // (2')
      if (kDropout) m[i] *= drop[i];
      if (!k.is_active(s, i)) m[i] = 0;
    }
    norm_backward(k, s, kR, dq);
    clear_padding(k, s, dq);
    k.publish(0, dq);
    // All from here on is linear in da, so that each warp may do it with the sums over its own units.
    k.reduce_to_owners(da, da_own);
    if (kNorm) k.sum_owners_over_warps(da_own);  // but for the sums that layer norm takes
    EACH_ROW {
      Real mean = 0;
      EACH_SLOT if (d < D) mean += a[slot][j] * da_own[slot][j];
      mean = Block::sum_over_lanes(mean);
      EACH_SLOT da_own[slot][j] = d < D && k.active(s, j) ? a[slot][j] * (da_own[slot][j] - mean) : Real(0);  // (1')
    }
    norm_lags_backward(k, s, da_own);
    if (kNorm && (k.cta > 0 || k.warp > 0)) EACH_SLOT EACH_ROW da_own[slot][j] = 0;
    share(k, da_own);
    k.arrive();
    store_all(dm_of(s), dm);
    k.store(k.mixed_now, MIXED_STRIDE, m);
    gradient(k, s, kR, dq);
  }
  METHOD void take_softmax(Block& k, int s) {
    OfDelays da;
    EACH_SLOT EACH_ROW da[slot][j] = 0;
    add_shares(k, da);
    softmax.take(k, da, d_softmax);
    lag_gradient(k, s, da);
  }
  METHOD void lag_gradient(Block& k, int s, const OfDelays& v) {
    EACH_SLOT EACH_ROW {
      if (!kNorm) lag_sums[slot][0] += v[slot][j];
      if (kSumsX) lag_sums[slot][kSumsX] += v[slot][j] * k.x[j];
      if (k.warp == 0 && d < D && k.cta == 0 && k.in_batch(j))
        k.gradient_now[sequence_of(j) * kGradientStride + d - k.unit] = v[slot][j];
    }
  }
  METHOD void norm_lags_backward(Block& k, int s, OfDelays& v) {
    if (!kNorm) return;
    OfDelays normed, scale;
    load_saved_lags(k, s, 1, normed), load_saved_lags(k, s, 2, scale);
    EACH_ROW {
      Real mean = 0, slope = 0;
      EACH_SLOT {
        if (d >= D || !k.active(s, j)) v[slot][j] = normed[slot][j] = scale[slot][j] = 0;
        lag_sums[slot][0] += v[slot][j], lag_sums[slot][kReductions - 1] += v[slot][j] * normed[slot][j];
        v[slot][j] *= lag_parameters[slot][kParameterRows - 1];
        mean += v[slot][j], slope += v[slot][j] * normed[slot][j];
      }
      mean = Block::sum_over_lanes(mean) / D, slope = Block::sum_over_lanes(slope) / D;
      EACH_SLOT v[slot][j] = scale[slot][j] * (v[slot][j] - mean - normed[slot][j] * slope);
    }
  }
  METHOD void finish_initial(Block& k, Values& sent) {
    softmax.send_back(k, d_softmax, sent);
    from_next_step(k, -1, sent);
    for (int back = 1; back <= M && k.args.d_initial_h; back++) {
      Values dh;
      load_d_output(k, -back, dh);
      load_later_before(k, -back);
      state_gradient(k, dh);
      if (back == 1) EACH_VALUE dh[i] += sent[i];
      k.store_state(k.args.d_initial_h, M, M - back, dh);
    }
  }
};

DEVICE Real softmax_weight(const Arguments& args, long e, int d, int unit) {
  return element(args, e, d < D ? d : -1, unit < H ? unit : -1, H);
}

// Forwards the reset gate's rows, then the new state's; backwards what is read by the new state, then by the gate.
template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k) {
  const int own = cta * kUnits + local < H ? cta * kUnits + local : -1;
#if BACKWARD
  return element(args, e, unit_at(k) < 0 ? -1 : D + (PHASE == 0 ? H : 0) + unit_at(k), own, H);
#else
  return element(args, e, own < 0 ? -1 : D + (PHASE == 0 ? 0 : H) + own, unit_at(k), H);
#endif
}
