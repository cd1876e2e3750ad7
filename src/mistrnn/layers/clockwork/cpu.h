// The CPU kernel of the Clockwork RNN; equation numbers as in reference.py, primed in the backward pass.
//
// A group is computed only at steps where it ticks for some sequence, from the units that it may read.
#pragma once

#include "kernels/cpu/recurrence.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct Clockwork : CellDefaults<F> {
  static constexpr long L = lanes<F>;

  void describe(Rows<F>& r) {
    size_ = r.H / r.D;
    for (long g = 0; g < r.D; g++) r.gate(size_, g * size_);
    for (long g = 0; g < r.D; g++) {
      long first = 0;
      while (!exists(r, (int)g, first * size_)) first++;
      r.part((int)g, 1, first * size_, r.H + 1 + r.I);
    }
  }

  // A group reads only groups of equal or longer period.
  bool exists(const Rows<F>& r, int g, long column) const {
    return r.call.delays[column / size_] >= r.call.delays[g];
  }
  long block(const Rows<F>&) const { return size_; }

  bool ticks(Rows<F>& r, long i, long s, long g) { return r.clock(i, s) % r.call.delays[g] == 0; }
  bool any_ticks(Rows<F>& r, long n, long s, long g) {
    for (long i = 0; i < n; i++)
      if (ticks(r, i, s, g)) return true;
    return false;
  }

  void forward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) {
      const F* before = r.past(i, s, 1);
      r.read_h(0, i, before), r.read_x(0, i, s);
      memcpy(r.fresh(i), before, sizeof(F) * r.H);
      if (r.call.save) memset(r.saved(i, s), 0, sizeof(F) * r.call.S);  // groups that do not tick save nothing
    }
    for (long g = 0; g < r.D; g++) {
      if (!any_ticks(r, n, s, g)) continue;
      r.forward((int)g, n);
      for (long i : r.mine(n)) {
        r.norm(i, s, (int)g);
        if (!ticks(r, i, s, g)) continue;                                                   // (2)
        const F* z = r.z(i, (int)g);
        F* to = r.fresh(i) + g * size_;
        for (long j = 0; j < size_; j += L) store_at(to, j, size_, tanh<F>(load(z + j)));   // (1)
      }
    }
  }

  void backward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) {
      r.read_h(0, i, r.past(i, s, 1)), r.read_x(0, i, s);
      memset(r.du(0, i), 0, sizeof(F) * r.u_stride);
      memset(r.z_rows + i * r.z_stride, 0, sizeof(F) * r.W_rows);
    }
    for (long g = 0; g < r.D; g++) {
      const bool any = any_ticks(r, n, s, g);
      for (long i : r.mine(n)) {
        const F *u = r.fresh_again(i, s) + g * size_, *dh = r.dh(i) + g * size_;
        F *dz = r.z(i, (int)g), *carry = r.carry(i) + g * size_;
        if (!any || !ticks(r, i, s, g)) {
          for (long j = 0; j < size_; j++) carry[j] += dh[j];                               // (2')
          continue;
        }
        for (long j = 0; j < size_; j += L) {
          const Vec<F> value = load_at(u, j, size_);
          store(dz + j, load_at(dh, j, size_) * (1 - value * value));                       // (1')
        }
        r.norm_backward(i, s, (int)g);
      }
      if (any) r.backward((int)g, n, true);
      else r.nothing_to_send((int)g, n);
    }
    for (long i : r.mine(n)) r.send_back(i, r.du(0, i), r.carry(i));
  }

 private:
  long size_ = 1;
};

}  // namespace mistrnn::MISTRNN_ISA
