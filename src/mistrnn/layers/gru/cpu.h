// The CPU kernel of GRU; equation numbers as in reference.py, primed in the backward pass.
//
// Saved for the backward pass: r, z, n and y = W_hn h + b_hn, [H] each.
#pragma once

#include "kernels/cpu/recurrence.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct Gru : CellDefaults<F> {
  static constexpr long L = lanes<F>;
  static constexpr bool kSavesFresh = false;
  enum { kR, kZ, kN, kY };  // n's rows are there twice: what x adds, and what h adds (y)

  void describe(Rows<F>& r) {
    r.gate(r.H, 0);
    r.gate(r.H, r.H);
    r.gate(r.H, 2 * r.H, false, true);
    r.gate(r.H, 2 * r.H, true, false, true);
    r.part(kR, 2, 0, r.H + 1 + r.I);
    r.part(kN, 1, r.H, r.H + 1 + r.I);
    r.part(kY, 1, 0, r.H + 1);
  }

  void forward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) r.read_h(0, i, r.past(i, s, 1)), r.read_x(0, i, s);
    for (int part = 0; part < 3; part++) r.forward(part, n);
    for (long i : r.mine(n)) {
      r.norm(i, s, kR);
      r.norm(i, s, kZ);
      F *zr = r.z(i, kR), *zz = r.z(i, kZ), *zn = r.z(i, kN), *y = r.z(i, kY);
      const F* before = r.past(i, s, 1);
      for (long j = 0; j < r.H; j += L) {
        store(zr + j, sigmoid<F>(load(zr + j)));                                            // (1)
        store(zz + j, sigmoid<F>(load(zz + j)));                                            // (2)
        store(zn + j, load(zn + j) + load(zr + j) * load(y + j));
      }
      r.norm(i, s, kN);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> z = load(zz + j), candidate = tanh<F>(load(zn + j));                   // (3)
        store(r.fresh(i) + j, (1 - z) * candidate + z * load_at(before, j, r.H));           // (4)
        store(zn + j, candidate);
      }
      if (r.call.save)
        for (int gate = 0; gate < 4; gate++) memcpy(r.saved(i, s) + gate * r.H, r.z(i, gate), sizeof(F) * r.H);
    }
  }

  void backward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) {
      const F *saved = r.saved(i, s), *before = r.past(i, s, 1), *dh = r.dh(i);
      F* carry = r.carry(i);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> z = load_at(saved + kZ * r.H, j, r.H), candidate = load_at(saved + kN * r.H, j, r.H);
        const Vec<F> d = load(dh + j);
        store(r.z(i, kN) + j, d * (1 - z) * (1 - candidate * candidate));                   // (4') (3')
        store(r.z(i, kZ) + j, d * (load_at(before, j, r.H) - candidate) * z * (1 - z));     // (4') (2')
        store(carry + j, load(carry + j) + d * z);                                          // (4')
      }
      r.norm_backward(i, s, kN);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> reset = load_at(saved + kR * r.H, j, r.H), d = load(r.z(i, kN) + j);
        store(r.z(i, kY) + j, d * reset);                                                   // (3')
        store(r.z(i, kR) + j, d * load_at(saved + kY * r.H, j, r.H) * reset * (1 - reset)); // (1')
      }
      r.norm_backward(i, s, kR);
      r.norm_backward(i, s, kZ);
      r.read_h(0, i, before), r.read_x(0, i, s);
    }
    for (int part = 0; part < 3; part++) r.backward(part, n, part > 0);
    for (long i : r.mine(n)) r.send_back(i, r.du(0, i), r.carry(i));
  }
};

}  // namespace mistrnn::MISTRNN_ISA
