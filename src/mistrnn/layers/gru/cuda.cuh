// The fused GPU form of GRU; equation numbers as in reference.py, primed in the backward pass.
//
// y is W_hn h + b_hn. Its gradients of pre-activations are those of r, z, n, and y.
#pragma once

#include "kernels/cuda/persistent/recurrence.cuh"

enum { kR, kUpdate, kNew, kY, kStateBefore };

struct GruGates {
  static constexpr int kGates = 3, kGradients = 4, kLagRows = 0, kGroups = 1;
  static constexpr int kSaved = 5, kFreshState = -1, kState = kSave ? kStateBefore : -1;  // the record: r, z, n, y and h
  static constexpr bool kPublishesAll = false;
  static METHOD constexpr int gate_row(int g) { return g * H; }
  static METHOD constexpr int gradient_column(int g) { return g * H; }
};

struct Gru : Gates<GruGates> {
  Real bias_hn[2 * TW];

  METHOD void begin(Block& k) {
    Gates<GruGates>::begin(k);
    EACH_VALUE bias_hn[unit_index(i)] =
        HAS_BIAS_HN && k.unit + unit_of(i) < H ? k.args.bias_hn[k.e * k.args.bias_hn_trial + k.unit + unit_of(i)] : Real(0);
  }
  METHOD int first_step(Block&) { return 0; }
  template <int PHASE> METHOD void read_ahead(Block& k, int s) {
    if (BACKWARD) load(k, s - 1);
    else load_input(k, s);
  }

  template <int PHASE> METHOD void forward(Block& k, int s, Real (&z)[3][kValues]) {
    Values &r = z[0], &update = z[1], &y = z[2], n, fresh;
    EACH_VALUE y[i] += bias_hn[unit_index(i)], n[i] = 0;
    add_input(k, 0, r), add_input(k, 1, update), add_input(k, 2, n);
    norm(k, s, 0, r), norm(k, s, 1, update);
    EACH_VALUE {
      r[i] = sigmoid_of(r[i]), update[i] = sigmoid_of(update[i]);                       // (1) (2)
      n[i] += r[i] * y[i];
    }
    norm(k, s, 2, n);
    EACH_VALUE {
      n[i] = tanh_of(n[i]);                                                             // (3)
      fresh[i] = (1 - update[i]) * n[i] + update[i] * h[i];                             // (4)
    }
    new_state(k, s, fresh);
    if (kSave) {
      store_all(k.saved(s, kR), r), store_all(k.saved(s, kUpdate), update);
      store_all(k.saved(s, kNew), n), store_all(k.saved(s, kY), y);
    }
  }
  template <int ROW_BLOCKS> METHOD void finish(Block& k, Real (&z)[ROW_BLOCKS][kValues]) {
    if (BACKWARD) finish_backward(k, z[0]);
    else finish_forward(k);
  }

  Values gates[4], previous, d_out;  // read one step ahead

  METHOD void load(Block& k, int s) {
    if (s < 0) return;
#pragma unroll
    for (int g = 0; g < 4; g++) load_all(k.saved(s, g), gates[g]);
    if (s > 0) load_all(k.saved(s - 1, kStateBefore), previous);
    else k.load_state(k.args.initial_h, k.args.initial_h_trial, 0, previous);
    mask_resets(k, s, previous);
    load_d_output(k, s, d_out);
    k.load_x(s);
  }
  METHOD void begin_backward(Block& k) {
    Gates<GruGates>::begin_backward(k);
    load(k, (int)k.args.T - 1);
  }
  template <int PHASE> METHOD void backward(Block& k, int s, Real (&z)[1][kValues]) {
    Values &dh = z[0], dr, du, dn, dy;
    from_next_step(k, s, dh);
    EACH_VALUE dh[i] += d_out[i];
    split_zoneout(k, s, dh);
    EACH_VALUE {
      const Real update = gates[kUpdate][i], n = gates[kNew][i];
      dn[i] = dh[i] * (1 - update) * (1 - n * n);                                       // (4') (3')
      du[i] = dh[i] * (previous[i] - n) * update * (1 - update);                        // (4') (2')
      h[i] += dh[i] * update;                                                           // (4')
    }
    norm_backward(k, s, 2, dn);
    EACH_VALUE {
      const Real r = gates[kR][i];
      dy[i] = dn[i] * r;                                                                // (3')
      dr[i] = dn[i] * gates[kY][i] * r * (1 - r);                                       // (1')
    }
    norm_backward(k, s, 0, dr), norm_backward(k, s, 1, du);
    clear_padding(k, s, dr), clear_padding(k, s, du), clear_padding(k, s, dn), clear_padding(k, s, dy);
    k.publish(0, dr), k.publish(1, du), k.publish(2, dy);
    k.arrive();
    gradient(k, s, 0, dr), gradient(k, s, 1, du), gradient(k, s, 2, dn), gradient(k, s, 3, dy);
    if (kNorm) EACH_VALUE sum[3][0][unit_index(i)] += dy[i];  // b_hn stands inside the norm
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int block, int local, int k) {
  return gate_weight<GruGates>(args, e, cta, block, local, k);
}
