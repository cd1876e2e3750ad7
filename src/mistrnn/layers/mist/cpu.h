// The CPU kernel of MIST; equation numbers as in reference.py, primed in the backward pass.
//
// Saved for the backward pass: a_t [D] and r_t [H]. The mixed history is computed again from the states.
#pragma once

#include "kernels/cpu/recurrence.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct Mist : CellDefaults<F> {
  static constexpr long L = lanes<F>;
  enum { kA, kR, kH };  // gates
  enum { kGates, kNew };  // products, and what they read: [h | 1 | x] and [r * m | 1 | x]

  void describe(Rows<F>& r) {
    r.reads = 2;
    r.gate(r.D, 0);
    r.gate(r.H, r.D);
    r.gate(r.H, r.D + r.H);
    r.part(kA, 2, 0, r.H + 1 + r.I, kGates);
    r.part(kH, 1, 0, r.H + 1 + r.I, kNew);
  }

  void prepare(Rows<F>& r, long most, bool is_backward) {
    history_ = r.arena.template zeros<const F*>(r.D);
    m_ = r.arena.template zeros<F>(r.h_stride);
    da_ = r.arena.template zeros<F>(r.D);
    ring_steps_ = r.M < r.call.T ? r.M : r.call.T;
    if (is_backward) {
      dm_ = r.template shared<F>(ring_steps_ * most * r.h_stride);
      filled_ = r.arena.template zeros<uint8_t>(ring_steps_);
    }
    most_ = most;
  }

  void forward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) r.read_h(kGates, i, r.past(i, s, 1)), r.read_x(kGates, i, s);
    r.forward(kGates, n);
    for (long i : r.mine(n)) {
      r.norm(i, s, kA);
      r.norm(i, s, kR);
      F *a = r.z(i, kA), *gate = r.z(i, kR);
      softmax(a, r.D);                                                                      // (1)
      for (long j = 0; j < r.H; j += L) store(gate + j, sigmoid<F>(load(gate + j)));        // (2)
      for (long d = 0; d < r.D; d++) history_[d] = r.past(i, s, r.call.delays[d]);
      for (long j = 0; j < r.H; j += L) {
        Vec<F> m = F(0);
        if (j + L <= r.H) for (long d = 0; d < r.D; d++) m += a[d] * load(history_[d] + j);  // (3)
        else for (long d = 0; d < r.D; d++) m += a[d] * load_part(history_[d] + j, r.H - j);
        store(m_ + j, m * load(gate + j));
      }
      r.read_h(kNew, i, m_), r.read_x(kNew, i, s);
      if (r.call.save) {
        F* saved = r.saved(i, s);
        memcpy(saved, a, sizeof(F) * r.D);
        memcpy(saved + r.D, gate, sizeof(F) * r.H);
      }
    }
    r.forward(kNew, n);
    for (long i : r.mine(n)) {
      r.norm(i, s, kH);
      r.tanh_of(i, kH);                                                                     // (4)
    }
  }

  void begin_backward(Rows<F>&) { memset(filled_, 0, ring_steps_); }
  void skip(Rows<F>&, long s) { filled_[s % ring_steps_] = 0; }

  // (3') dh_s += the sum over d of a_{s+d} dm_{s+d}, which the later steps left in the ring.
  void gather(Rows<F>& r, long s, long n) {
    for (long d = 0; d < r.D; d++) {
      const long delay = r.call.delays[d], later = s + delay;
      if (later < 0 || later >= r.sequences[0].length || !filled_[later % ring_steps_]) continue;
      for (long i : r.mine(n)) {
        if (r.sequences[i].length <= later || !r.sees(i, later, delay)) continue;
        const F a = r.saved(i, later)[d], *dm = ring(r, later, i);
        F* dh = r.dh(i);
        for (long j = 0; j < r.H; j += L) store_at(dh, j, r.H, load(dh + j) + a * load(dm + j));  // NaN stays in its lanes
      }
    }
  }

  void backward(Rows<F>& r, long s, long n) {
    for (long i : r.mine(n)) {
      r.tanh_backward(i, s, kH);                                                            // (4')
      r.norm_backward(i, s, kH);
    }
    r.backward(kNew, n, false);
    for (long i : r.mine(n)) {
      const F *a = r.saved(i, s), *gate = a + r.D, *mask = r.dropout(i);
      F *dq = r.du(kNew, i), *dm = ring(r, s, i), *dz_r = r.z(i, kR), *dz_a = r.z(i, kA);
      for (long j = 0; j < r.H; j += L) {
        Vec<F> d = load_at(dq, j, r.H);
        if (mask) d *= load_at(mask, j, r.H);
        store(dz_r + j, d);  // the gradient of r * m, until m is known
        store(dm + j, d * load_at(gate, j, r.H));
      }
      for (long d = 0; d < r.D; d++) history_[d] = r.past(i, s, r.call.delays[d]);
      memset(m_, 0, sizeof(F) * r.h_stride);
      long from = 0;
      for (; from + 4 <= r.D; from += 4) mix_again<4>(r.H, a, dm, from);
      for (; from < r.D; from++) mix_again<1>(r.H, a, dm, from);
      F mean = 0;
      for (long d = 0; d < r.D; d++) mean += a[d] * da_[d];
      for (long d = 0; d < r.D; d++) dz_a[d] = a[d] * (da_[d] - mean);                      // (1')
      for (long j = 0; j < r.H; j += L) {
        const Vec<F> value = load_at(gate, j, r.H), m = load(m_ + j);
        store(dz_r + j, load(dz_r + j) * m * value * (1 - value));                          // (2')
        store(m_ + j, m * value);
      }
      r.norm_backward(i, s, kA);
      r.norm_backward(i, s, kR);
      r.read_h(kGates, i, r.past(i, s, 1)), r.read_x(kGates, i, s);
      r.read_h(kNew, i, m_), r.read_x(kNew, i, s);
    }
    filled_[s % ring_steps_] = 1;
    r.backward(kGates, n, false);
    for (long i : r.mine(n)) r.send_back(i, r.du(kGates, i), r.carry(i));
  }

 private:
  // For a few delays at once: m += a h (3) again, and da = dm . h (3').
  template <int Count> void mix_again(long H, const F* a, const F* dm, long from) {
    Vec<F> total[Count];
    for (int d = 0; d < Count; d++) total[d] = F(0);
    auto step = [&](long j, auto read) __attribute__((always_inline)) {
      Vec<F> m = load(m_ + j);
      const Vec<F> gradient = load(dm + j);
      for (int d = 0; d < Count; d++) {
        const Vec<F> value = read(history_[from + d] + j);
        m += a[from + d] * value;
        total[d] += gradient * value;
      }
      store(m_ + j, m);
    };
    long j = 0;
    for (; j + L <= H; j += L) step(j, [](const F* p) { return load(p); });
    if (j < H) step(j, [&](const F* p) { return load_part(p, H - j); });
    for (int d = 0; d < Count; d++) da_[from + d] = sum<F>(total[d]);
  }

  static void softmax(F* z, long count) {
    F top = z[0], total = 0;
    for (long d = 1; d < count; d++) top = z[d] > top ? z[d] : top;
    for (long d = 0; d < count; d += L) {
      Vec<F> value = exp<F>(load(z + d) - top);
      if (d + L > count) value = first_lanes<F>(value, count - d);
      store(z + d, value);
      total += sum<F>(value);
    }
    const F scale = 1 / total;
    for (long d = 0; d < count; d += L) store(z + d, load(z + d) * scale);
  }

  F* ring(Rows<F>& r, long s, long i) { return dm_ + (s % ring_steps_ * most_ + i) * r.h_stride; }

  const F** history_ = nullptr;
  F *m_ = nullptr, *da_ = nullptr, *dm_ = nullptr;  // dm_: the gradients of m at the last M steps
  uint8_t* filled_ = nullptr;
  long ring_steps_ = 1, most_ = 0;
};

}  // namespace mistrnn::MISTRNN_ISA
