// The CPU kernel of the simple NARX RNN; equation numbers as in reference.py, primed in the backward pass.
#pragma once

#include "kernels/cpu/recurrence.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct Narx : CellDefaults<F> {
  static constexpr long L = lanes<F>;
  enum { kAll, kX, kDelay };  // products: everything forwards; backwards x by itself, and from here on delay by delay

  void describe(Rows<F>& r) {
    r.Kh = r.D * r.H;
    r.gate(r.H, 0);
    r.part(0, 1, 0, r.Kh + 1 + r.I, 0, kForwards);
    r.part(0, 1, r.Kh + 1, r.Kh + 1 + r.I, 0, kBackwards);
    for (long d = 0; d < r.D; d++) r.part(0, 1, d * r.H, (d + 1) * r.H, 0, kBackwards);
  }

  void prepare(Rows<F>& r, long most, bool is_backward) {
    ring_steps_ = r.M < r.call.T ? r.M : r.call.T;
    most_ = most;
    if (!is_backward) return;
    width_ = round_up(r.H, L);
    dz_ = r.template shared<F>(ring_steps_ * most * width_);
    filled_ = r.arena.template zeros<uint8_t>(ring_steps_);
    later_ = r.template shared<F>(most * width_);
    back_ = r.template shared<F>(most * r.u_stride);
  }

  void read(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) {
      for (long d = 0; d < r.D; d++) r.read_h(0, i, r.past(i, s, r.call.delays[d]), d * r.H);
      r.read_x(0, i, s);
    }
  }

  void forward(Rows<F>& r, long s, long n) {
    read(r, s, n);
    r.forward(kAll, n);
    for (long i : r.mine(n)) {
      r.norm(i, s, 0);
      r.tanh_of(i, 0);  // (1)
    }
  }

  void begin_backward(Rows<F>&) { memset(filled_, 0, ring_steps_); }
  void skip(Rows<F>&, long s) { filled_[s % ring_steps_] = 0; }

  // (1') dh_s += the sum over d of W_d' dz_{s+d}, which the later steps left in the ring.
  void gather(Rows<F>& r, long s, long n) {
    bool any = false;
    for (long d = 0; d < r.D; d++) {
      const long delay = r.call.delays[d], later = s + delay;
      if (later < 0 || later >= r.sequences[0].length || !filled_[later % ring_steps_]) continue;
      for (long i : r.mine(n)) {
        if (r.sequences[i].length > later && r.sees(i, later, delay))
          memcpy(later_ + i * width_, ring(later, i), sizeof(F) * width_);
        else
          memset(later_ + i * width_, 0, sizeof(F) * width_);
      }
      r.multiply_back((int)(kDelay + d), n, later_, width_, back_, any);
      any = true;
    }
    for (long i : r.mine(any ? n : 0)) r.send_back(i, back_ + i * r.u_stride, r.dh(i));
  }

  void backward(Rows<F>& r, long s, long n) {
    read(r, s, n);
    for (long i : r.mine(n)) {
      r.tanh_backward(i, s, 0);  // (1')
      r.norm_backward(i, s, 0);
      memcpy(ring(s, i), r.z(i, 0), sizeof(F) * width_);
    }
    filled_[s % ring_steps_] = 1;
    if (r.wants_x()) r.backward(kX, n, false);
  }

 private:
  F* ring(long s, long i) { return dz_ + (s % ring_steps_ * most_ + i) * width_; }

  F *dz_ = nullptr, *later_ = nullptr, *back_ = nullptr;  // dz_: of the last M steps
  uint8_t* filled_ = nullptr;
  long ring_steps_ = 1, most_ = 0, width_ = 0;
};

}  // namespace mistrnn::MISTRNN_ISA
