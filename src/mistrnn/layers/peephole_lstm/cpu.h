// The CPU kernel of the LSTM with peepholes; equation numbers as in reference.py, primed in the backward pass.
//
// Saved for the backward pass: i, f, g, o and c (after zoneout), [H] each.
#pragma once

#include "kernels/cpu/memory_cell.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct PeepholeLstm : MemoryCell<F> {
  static constexpr long L = lanes<F>;
  static constexpr bool kSavesFresh = false;
  enum { kI, kF, kG, kO, kC };
  enum { kFromI, kFromF, kFromO, kPeepholes };  // rows of the diagonal weights

  void describe(Rows<F>& r) {
    for (int gate = 0; gate < 4; gate++) r.gate(r.H, gate * r.H);
    r.part(kI, 4, 0, r.H + 1 + r.I);
    r.P = kPeepholes;
  }

  void forward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) r.read_h(0, i, r.past(i, s, 1)), r.read_x(0, i, s);
    r.forward(0, n);
    for (long i : r.mine(n)) {
      if (!r.sees(i, s, 1)) memset(this->c(r, i), 0, sizeof(F) * r.H);
      F *zi = r.z(i, kI), *zf = r.z(i, kF), *zg = r.z(i, kG), *zo = r.z(i, kO), *cell = this->c(r, i), *fresh = r.fresh(i);
      peep(r, zi, kFromI, cell), peep(r, zf, kFromF, cell);
      for (int gate = kI; gate <= kG; gate++) r.norm(i, s, gate);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> in = sigmoid<F>(load(zi + j)), forget = sigmoid<F>(load(zf + j));      // (1) (2)
        const Vec<F> g = tanh<F>(load(zg + j));                                             // (3)
        store(zi + j, in), store(zf + j, forget), store(zg + j, g);
        store(fresh + j, forget * load(cell + j) + in * g);                                 // (4)
      }
      peep(r, zo, kFromO, fresh);
      r.norm(i, s, kO);
      const uint8_t* kept = r.kept(r.call.keep_c, r.call.keep_c_trial, i, s);
      const F p = F(r.call.zoneout);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> before = load(cell + j), now = load(fresh + j), out = sigmoid<F>(load(zo + j));  // (5)
        store(zo + j, out);
        store(fresh + j, out * tanh<F>(now));                                               // (6)
        store(cell + j, p * before + (1 - p) * now);
        if (kept)
          for (long k = 0; k < L && j + k < r.H; k++)
            if (kept[j + k]) cell[j + k] = before[k];
      }
      if (r.call.save) {
        for (int gate = 0; gate < 4; gate++) memcpy(r.saved(i, s) + gate * r.H, r.z(i, gate), sizeof(F) * r.H);
        memcpy(r.saved(i, s) + kC * r.H, cell, sizeof(F) * r.H);
      }
    }
  }

  void backward(Rows<F>& r, long s, long n) {
    const F p = F(r.call.zoneout);
    for (long i : r.mine(n)) {
      const F *saved = r.saved(i, s), *dh = r.dh(i), *previous = this->previous(r, i, s, kC * r.H);
      const uint8_t* kept = r.kept(r.call.keep_c, r.call.keep_c_trial, i, s);
      F *dc_row = this->c(r, i), *zi = r.z(i, kI), *zf = r.z(i, kF), *zg = r.z(i, kG), *zo = r.z(i, kO), *now_row = r.fresh(i);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> in = load_at(saved + kI * r.H, j, r.H), forget = load_at(saved + kF * r.H, j, r.H);
        const Vec<F> g = load_at(saved + kG * r.H, j, r.H), out = load_at(saved + kO * r.H, j, r.H);
        const Vec<F> now = forget * load_at(previous, j, r.H) + in * g;
        store(now_row + j, now);
        store(zo + j, load(dh + j) * tanh<F>(now) * out * (1 - out));                       // (6') (5')
      }
      r.norm_backward(i, s, kO);
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> in = load_at(saved + kI * r.H, j, r.H), forget = load_at(saved + kF * r.H, j, r.H);
        const Vec<F> g = load_at(saved + kG * r.H, j, r.H), out = load_at(saved + kO * r.H, j, r.H);
        const Vec<F> squashed = tanh<F>(load(now_row + j)), arrived = load(dc_row + j);
        Vec<F> to_new = (1 - p) * arrived, to_old = p * arrived;
        if (kept)
          for (long k = 0; k < L && j + k < r.H; k++)
            if (kept[j + k]) to_new[k] = F(0), to_old[k] = arrived[k];
        const Vec<F> dc = to_new + load(dh + j) * out * (1 - squashed * squashed)           // (6')
                          + load(zo + j) * load_at(r.diagonal(kFromO), j, r.H);             // (5')
        store(zi + j, dc * g * in * (1 - in));                                              // (4') (1')
        store(zf + j, dc * load_at(previous, j, r.H) * forget * (1 - forget));              // (4') (2')
        store(zg + j, dc * in * (1 - g * g));                                               // (4') (3')
        store(dc_row + j, to_old + dc * forget);                                            // (4')
      }
      for (int gate = kI; gate <= kG; gate++) r.norm_backward(i, s, gate);
      for (long j = 0; j < r.H; j += L)
        store(dc_row + j, load(dc_row + j) + load(zi + j) * load_at(r.diagonal(kFromI), j, r.H)  // (1')
                              + load(zf + j) * load_at(r.diagonal(kFromF), j, r.H));             // (2')
      add_gradient(r, kFromI, zi, previous), add_gradient(r, kFromF, zf, previous), add_gradient(r, kFromO, zo, now_row);
      r.read_h(0, i, r.past(i, s, 1)), r.read_x(0, i, s);
    }
    r.backward(0, n, false);
    for (long i : r.mine(n)) r.send_back(i, r.du(0, i), r.carry(i));
  }

 private:
  // z += w * c, a peephole's share of the pre-activations.
  void peep(Rows<F>& r, F* z, int row, const F* c) {
    for (long j = 0; j < r.H; j += L) store(z + j, load(z + j) + load_at(r.diagonal(row), j, r.H) * load(c + j));
  }
  void add_gradient(Rows<F>& r, int row, const F* dz, const F* c) {
    F* to = r.d_diagonal + row * r.H;
    for (long j = 0; r.d_diagonal && j < r.H; j += L)
      store_at(to, j, r.H, load_at(to, j, r.H) + load(dz + j) * load_at(c, j, r.H));
  }
};

}  // namespace mistrnn::MISTRNN_ISA
