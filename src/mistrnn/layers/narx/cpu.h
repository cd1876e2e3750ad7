// The fused CPU form of the simple NARX RNN; equation numbers as in reference.py, primed in the backward pass.
#pragma once

#include "kernels/cpp/recurrence.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct Narx : PlainCell<F> {
  static constexpr long L = lanes<F>;
  enum { kAll, kX };  // products: everything forwards, and only x backwards (gather sends gradients to earlier states)

  void describe(Rows<F>& r) {
    r.Kh = r.D * r.H;
    r.gate(r.H, 0);
    r.part(0, 1, 0, r.Kh + 1 + r.I);
    r.part(0, 1, r.Kh + 1, r.Kh + 1 + r.I, 0, true);
  }

  bool prepare(Rows<F>& r, long most, bool is_backward) {
    ring_steps_ = r.M < r.call.T ? r.M : r.call.T;
    most_ = most;
    if (!is_backward) return true;
    width_ = round_up(r.H, L);
    dz_ = r.arena.template zeros<F>(ring_steps_ * most * width_);
    filled_ = r.arena.template zeros<uint8_t>(ring_steps_);
    later_ = r.arena.template zeros<F>(most * r.D * width_);
    back_ = r.arena.template zeros<F>(most * r.u_stride);
    // The transposed weights, delay under delay: one product collects what all the later steps send.
    F* stacked = r.arena.template zeros<F>(r.D * width_ * r.H);
    weights_ = r.arena.template zeros<F>(packed_size<F>(r.D * width_, r.H));
    if (r.arena.failed) return false;
    for (long d = 0; d < r.D; d++)
      for (long j = 0; j < r.H; j++)
        memcpy(stacked + (d * width_ + j) * r.H, r.W + j * r.W_stride + d * r.H, sizeof(F) * r.H);
    pack<F>(stacked, r.H, 1, r.D * width_, r.H, weights_);
    return true;
  }

  void read(Rows<F>& r, long s, long n) {
    for (long i = 0; i < n; i++) {
      for (long d = 0; d < r.D; d++) r.read_h(0, i, r.past(i, s, r.call.delays[d]), d * r.H);
      r.read_x(0, i, s);
    }
  }

  void forward(Rows<F>& r, long s, long n) {
    read(r, s, n);
    r.forward(kAll, n);
    for (long i = 0; i < n; i++) {
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
      const bool filled = later >= 0 && later < r.sequences[0].length && filled_[later % ring_steps_];
      any |= filled;
      for (long i = 0; i < n; i++) {
        F* to = later_ + (i * r.D + d) * width_;
        if (filled && r.sequences[i].length > later && r.sees(i, later, delay))
          memcpy(to, ring(later, i), sizeof(F) * width_);
        else
          memset(to, 0, sizeof(F) * width_);
      }
    }
    if (!any) return;
    multiply<F>(n, later_, r.D * width_, 1, weights_, panel_width<F>, panel_width<F> * r.D * width_, r.D * width_, r.H,
                back_, r.u_stride, false);
    for (long i = 0; i < n; i++) r.send_back(i, back_ + i * r.u_stride, r.dh(i));
  }

  void backward(Rows<F>& r, long s, long n) {
    read(r, s, n);
    for (long i = 0; i < n; i++) {
      r.tanh_backward(i, s, 0);  // (1')
      r.norm_backward(i, s, 0);
      memcpy(ring(s, i), r.z(i, 0), sizeof(F) * width_);
    }
    filled_[s % ring_steps_] = 1;
    if (r.wants_x()) r.backward(kX, n, false);
  }

 private:
  F* ring(long s, long i) { return dz_ + (s % ring_steps_ * most_ + i) * width_; }

  F *dz_ = nullptr, *later_ = nullptr, *back_ = nullptr, *weights_ = nullptr;  // dz_: of the last M steps
  uint8_t* filled_ = nullptr;
  long ring_steps_ = 1, most_ = 0, width_ = 0;
};

}  // namespace mistrnn::MISTRNN_ISA
