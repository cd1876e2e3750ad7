// The fused GPU form of GRU; equation numbers as in reference.py, primed in the backward pass.
//
// Saved for the backward pass: r, z, n and y = W_hn h + b_hn, [H] each. Its gradients of pre-activations are those of r, z,
// n, and y.
#pragma once

#include "kernels/cuh/recurrence.cuh"

struct GruGates {
  static constexpr int kGates = 3, kGradients = 4, kExtra = 0, kGroups = 1, kBlocks = 3, kSaved = 4 * H;
  static constexpr bool kSavesFresh = false;
  enum { kR, kZ, kN, kY };
  static METHOD constexpr int gate_row(int g) { return g * H; }
  static METHOD constexpr int gradient_column(int g) { return g * H; }
  static METHOD constexpr int norm_block(int g) { return g; }
};

struct Gru : Gates<GruGates>, GruGates {
  METHOD int first_step(Block& k) { return k.load_x(0), 0; }

  template <int PHASE> METHOD void forward(Block& k, int s) {
    Real r[4], update[4], n[4] = {0, 0, 0, 0}, y[4], fresh[4];
    k.product(kR, Shape0::KS, r), k.product(kZ, Shape0::KS, update), k.product(kN, Shape0::KS, y);
    if (HAS_BIAS_HN) EACH_UNIT y[i] += k.args.bias_hn[k.e * k.args.bias_hn_trial + k.unit(i)];
    add_input(k, s, kR, r), add_input(k, s, kZ, update), add_input(k, s, kN, n);
    norm(k, s, kR, r), norm(k, s, kZ, update);
    EACH_UNIT {
      r[i] = sigmoid_of(r[i]), update[i] = sigmoid_of(update[i]);                       // (1) (2)
      n[i] += r[i] * y[i];
    }
    norm(k, s, kN, n);
    EACH_UNIT {
      n[i] = tanh_of(n[i]);                                                             // (3)
      fresh[i] = (1 - update[i]) * n[i] + update[i] * h[i];                             // (4)
    }
    if (kSave && k.active(s)) {
      Real* saved = k.saved(s) + k.first_unit();
      k.store(saved + kR * H, r), k.store(saved + kZ * H, update), k.store(saved + kN * H, n), k.store(saved + kY * H, y);
    }
    new_state(k, s, fresh);
    k.load_x(s + 1);
  }
  METHOD void finish(Block& k) {
#if BACKWARD
    finish_backward(k, Shape0::KS);
#else
    finish_forward(k);
#endif
  }

  Real gates[4][4], previous[4], outer[4];  // read one step ahead

  METHOD void load(Block& k, int s) {
    if (s < 0) return;
    if (k.active(s)) {
#pragma unroll
      for (int g = 0; g < 4; g++) k.load(k.saved(s) + g * H + k.first_unit(), gates[g]);
      k.past(s, 1, previous);
    }
    load_outer(k, s, outer);
  }
  METHOD void begin_backward(Block& k) {
    Gates<GruGates>::begin_backward(k);
    EACH_UNIT previous[i] = 0;
#pragma unroll
    for (int g = 0; g < 4; g++) EACH_UNIT gates[g][i] = 0;
    load(k, (int)k.args.T - 1);
  }
  template <int PHASE> METHOD void backward(Block& k, int s) {
    Real dh[4], dr[4], du[4], dn[4], dy[4];
    if (kSumsX) k.load_x(s);
    sent_back(k, s, Shape0::KS, dh);
    EACH_UNIT dh[i] += outer[i];
    split_kept(k, s, dh);
    EACH_UNIT {
      const Real z = gates[kZ][i], n = gates[kN][i];
      dn[i] = dh[i] * (1 - z) * (1 - n * n);                                            // (4') (3')
      du[i] = dh[i] * (previous[i] - n) * z * (1 - z);                                  // (4') (2')
      h[i] += dh[i] * z;                                                                // (4')
    }
    norm_backward(k, s, kN, dn);
    EACH_UNIT {
      const Real r = gates[kR][i];
      dy[i] = dn[i] * r;                                                                // (3')
      dr[i] = dn[i] * gates[kY][i] * r * (1 - r);                                       // (1')
    }
    norm_backward(k, s, kR, dr), norm_backward(k, s, kZ, du);
    gradient(k, s, kR, dr), gradient(k, s, kZ, du), gradient(k, s, kN, dn), gradient(k, s, kY, dy);
    if (kNorm) EACH_UNIT sum[kY][0][i] += dy[i];  // b_hn stands inside the norm
    k.publish(0, dr), k.publish(1, du), k.publish(2, dy);
    load(k, s - 1);
  }
};

template <int PHASE> DEVICE Real weight_at(const Arguments& args, long e, int cta, int row, int k) {
  return gate_weight<GruGates>(args, e, cta, row, k);
}
