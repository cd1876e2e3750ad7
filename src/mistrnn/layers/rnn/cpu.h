// The CPU kernel of the simple RNN; equation numbers as in reference.py, primed in the backward pass.
#pragma once

#include "kernels/cpu/recurrence.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct Rnn : CellDefaults<F> {
  void describe(Rows<F>& r) {
    r.gate(r.H, 0);
    r.part(0, 1, 0, r.H + 1 + r.I);
  }

  void forward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) r.read_h(0, i, r.past(i, s, 1)), r.read_x(0, i, s);
    r.forward(0, n);
    for (long i : r.mine(n)) {
      r.norm(i, s, 0);
      r.tanh_of(i, 0);  // (1)
    }
  }

  void backward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) {
      r.read_h(0, i, r.past(i, s, 1)), r.read_x(0, i, s);
      r.tanh_backward(i, s, 0);  // (1')
      r.norm_backward(i, s, 0);
    }
    r.backward(0, n, false);
    for (long i : r.mine(n)) r.send_back(i, r.du(0, i), r.carry(i));
  }
};

}  // namespace mistrnn::MISTRNN_ISA
