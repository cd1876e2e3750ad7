// The second state component c of cells such as gated memory cells: it is kept beside h, [count][h_stride], and is read one
// step back only.
#pragma once

#include "kernels/cpu/recurrence.h"

namespace mistrnn::MISTRNN_ISA {

template <class F> struct MemoryCell : CellDefaults<F> {
  static constexpr long L = lanes<F>;

  void prepare(Rows<F>& r, long most, bool) { c_ = r.template shared<F>(most * r.h_stride); }

  void begin(Rows<F>& r) {
    for (long i : r.mine(r.count)) memcpy(c(r, i), initial(r, i), sizeof(F) * r.H);
  }
  void finish(Rows<F>& r) {
    for (long i : r.mine(r.call.final_c ? r.count : 0))
      memcpy((F*)r.call.final_c + r.e * r.call.B * r.H + r.state_row(i, 0), c(r, i), sizeof(F) * r.H);
  }

  void begin_backward(Rows<F>& r) {
    for (long i : r.mine(r.count)) {
      const F* d = Rows<F>::template offset<const F>(r.call.d_final_c, r.e * r.call.d_final_c_trial + r.state_row(i, 0));
      for (long j = 0; j < r.h_stride; j++) c(r, i)[j] = d && j < r.H ? d[j] : F(0);
    }
  }
  F* beside(Rows<F>& r, long i) { return c(r, i); }
  bool nothing_arrives(Rows<F>& r, long, long n) {
    for (long i : r.mine(n))
      for (long j = 0; j < r.H; j++)
        if (!(c(r, i)[j] == F(0))) return false;
    return true;
  }
  void cut(Rows<F>& r, long i) { memset(c(r, i), 0, sizeof(F) * r.H); }
  void finish_backward(Rows<F>& r) {
    for (long i : r.mine(r.call.d_initial_c ? r.count : 0))
      memcpy((F*)r.call.d_initial_c + r.e * r.call.B * r.H + r.state_row(i, 0), c(r, i), sizeof(F) * r.H);
  }

 protected:
  F* c(Rows<F>& r, long i) { return c_ + i * r.h_stride; }  // c in the forward pass, its gradient in the backward pass
  const F* initial(Rows<F>& r, long i) {
    return (const F*)r.call.initial_c + r.e * r.call.initial_c_trial + r.state_row(i, 0);
  }
  // c_{s-1}; a forward step saves c at `saved_at`.
  const F* previous(Rows<F>& r, long i, long s, long saved_at) {
    return !r.sees(i, s, 1) ? r.zero_row : s > 0 ? r.saved(i, s - 1) + saved_at : initial(r, i);
  }

 private:
  F* c_ = nullptr;
};

}  // namespace mistrnn::MISTRNN_ISA
