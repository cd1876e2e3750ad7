// The CPU kernel of LSTM; equation numbers as in reference.py, primed in the backward pass.
//
// Saved for the backward pass: i, f, g, o and c (after zoneout), [H] each.
#pragma once

#include "kernels/cpu/memory_cell.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct Lstm : MemoryCell<F> {
  static constexpr long L = lanes<F>;
  static constexpr bool kSavesFresh = false;
  enum { kI, kF, kG, kO, kC };

  void describe(Rows<F>& r) {
    for (int gate = 0; gate < 4; gate++) r.gate(r.H, gate * r.H);
    r.part(kI, 4, 0, r.H + 1 + r.I);
  }

  void forward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) r.read_h(0, i, r.past(i, s, 1)), r.read_x(0, i, s);
    r.forward(0, n);
    for (long i : r.mine(n)) {
      for (int gate = 0; gate < 4; gate++) r.norm(i, s, gate);
      if (!r.sees(i, s, 1)) memset(this->c(r, i), 0, sizeof(F) * r.H);
      F *zi = r.z(i, kI), *zf = r.z(i, kF), *zg = r.z(i, kG), *zo = r.z(i, kO), *cell = this->c(r, i);
      const uint8_t* kept = r.kept(r.call.keep_c, r.call.keep_c_trial, i, s);
      const F p = F(r.call.zoneout);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> in = sigmoid<F>(load(zi + j)), forget = sigmoid<F>(load(zf + j));      // (1) (2)
        const Vec<F> g = tanh<F>(load(zg + j)), out = sigmoid<F>(load(zo + j));             // (3) (4)
        const Vec<F> before = load(cell + j), now = forget * before + in * g;               // (5)
        store(r.fresh(i) + j, out * tanh<F>(now));                                          // (6)
        store(cell + j, p * before + (1 - p) * now);
        if (kept)
          for (long k = 0; k < L && j + k < r.H; k++)
            if (kept[j + k]) cell[j + k] = before[k];
        if (r.call.save) {
          F* saved = r.saved(i, s);
          store_at(saved + kI * r.H, j, r.H, in);
          store_at(saved + kF * r.H, j, r.H, forget);
          store_at(saved + kG * r.H, j, r.H, g);
          store_at(saved + kO * r.H, j, r.H, out);
          store_at(saved + kC * r.H, j, r.H, load(cell + j));
        }
      }
    }
  }

  void backward(Rows<F>& r, long s, long n) {
    const F p = F(r.call.zoneout);
    for (long i : r.mine(n)) {
      const F *saved = r.saved(i, s), *dh = r.dh(i);
      const F* previous = this->previous(r, i, s, kC * r.H);
      const uint8_t* kept = r.kept(r.call.keep_c, r.call.keep_c_trial, i, s);
      F* dc_row = this->c(r, i);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> in = load_at(saved + kI * r.H, j, r.H), forget = load_at(saved + kF * r.H, j, r.H);
        const Vec<F> g = load_at(saved + kG * r.H, j, r.H), out = load_at(saved + kO * r.H, j, r.H);
        const Vec<F> before = load_at(previous, j, r.H), now = tanh<F>(forget * before + in * g);
        const Vec<F> d = load(dh + j), arrived = load(dc_row + j);
        Vec<F> to_new = (1 - p) * arrived, to_old = p * arrived;
        if (kept)
          for (long k = 0; k < L && j + k < r.H; k++)
            if (kept[j + k]) to_new[k] = F(0), to_old[k] = arrived[k];
        const Vec<F> dc = to_new + d * out * (1 - now * now);                               // (6')
        store(r.z(i, kO) + j, d * now * out * (1 - out));                                   // (4')
        store(r.z(i, kI) + j, dc * g * in * (1 - in));                                      // (1')
        store(r.z(i, kF) + j, dc * before * forget * (1 - forget));                         // (2')
        store(r.z(i, kG) + j, dc * in * (1 - g * g));                                       // (3')
        store(dc_row + j, to_old + dc * forget);                                            // (5')
      }
      for (int gate = 0; gate < 4; gate++) r.norm_backward(i, s, gate);
      r.read_h(0, i, r.past(i, s, 1)), r.read_x(0, i, s);
    }
    r.backward(0, n, false);
    for (long i : r.mine(n)) r.send_back(i, r.du(0, i), r.carry(i));
  }
};

}  // namespace mistrnn::MISTRNN_ISA
