// The parameters of one trial on their way into the panels that products read, and their gradients on the way out.
//
// Threads can share the work: slice s of n takes every n-th of the rows of W, or of groups of them, from the s-th on.
#pragma once

#include "kernels/cpu/rows.h"

namespace mistrnn::MISTRNN_ISA {

// The gradients that some sequences of a trial add up.
template <class F> struct Gradients {
  F* weights = nullptr;  // [W_rows][W_stride], or null if none are wanted
  F* sums = nullptr;     // [members][stride]: gains [G], biases of layer norm [G], diagonal weights [P, H]
  long members = 1, stride = 0;
  F* gain(long member) const { return sums ? sums + member * stride : nullptr; }
  F* norm_bias(long member, long G) const { return sums ? gain(member) + G : nullptr; }
  F* diagonal(long member, long G) const { return sums ? gain(member) + 2 * G : nullptr; }
};

template <class F, class Cell> class Weights {
 public:
  static constexpr long L = lanes<F>, kWidth = panel_width<F>;

  Weights(Rows<F>& rows, const Cell& cell, bool is_backward)
      : call_(rows.call), r_(rows), cell_(cell), is_backward_(is_backward) {}

  long size() const {  // of all panels
    long total = 0;
    for (int p = 0; p < r_.part_count; p++) total += size_of(r_.parts[p]);
    return total;
  }

  // Say where the panels are, or will be.
  void place(F* panels) {
    for (int p = 0; p < r_.part_count; panels += size_of(r_.parts[p++])) r_.parts[p].panels = panels;
  }

  // Fill the panels: their rows are columns of W for products forwards, and rows of W for products backwards.
  bool pack(long slice, long slices) {
    F* rows = r_.arena.template zeros<F>(L * r_.W_stride);
    if (r_.arena.failed) return false;
    for (int p = 0; p < r_.part_count; p++) {
      const Part<F>& part = r_.parts[p];
      for (long row = slice * L; size_of(part) && row < part.rows; row += slices * L) {
        read(part.row + row, part.column, part.columns, rows);
        if (is_backward_) {
          for (long l = 0; l < L; l++)
            for (long k = 0; k < part.columns; k += kWidth) {
              const long here = part.columns - k < kWidth ? part.columns - k : kWidth;
              F* to = part.panels + k * part.rows + (row + l) * kWidth;
              memcpy(to, rows + l * part.columns + k, sizeof(F) * here);
              memset(to + here, 0, sizeof(F) * (kWidth - here));
            }
        } else {
          F* to = part.panels + row / kWidth * kWidth * part.columns + row % kWidth;
          for (long k = 0; k < part.columns; k++, to += kWidth)
            for (long l = 0; l < L; l++) to[l] = rows[l * part.columns + k];
        }
      }
    }
    return true;
  }

  // Write the gradients of the parameters, from all sums of the trial.
  void hand_over(const Gradients<F>* sums, long count, long slice, long slices) {
    F *ih = (F*)call_.d_weight_ih + r_.e * r_.G * r_.I, *hh = (F*)call_.d_weight_hh + r_.e * r_.G * r_.Kh;
    F* bias = Rows<F>::template offset<F>(call_.d_bias, r_.e * r_.G);
    F* bias_hn = Rows<F>::template offset<F>(call_.d_bias_hn, r_.e * r_.H);
    for (int g = 0; g < r_.gate_count; g++) {
      const Gate& gate = r_.gates[g];
      for (long j = slice; j < gate.size; j += slices) {
        const long at = (gate.row + j) * r_.W_stride, row = gate.parameter_row + j, block = cell_.block(r_);
        auto total = [&](F* to, long column, long columns) {
          memcpy(to, sums[0].weights + at + column, sizeof(F) * columns);
          for (long c = 1; c < count; c++)
            for (long k = 0; k < columns; k++) to[k] += sums[c].weights[at + column + k];
        };
        for (long k = 0; gate.reads_h && k < r_.Kh; k += block) {
          F* to = hh + row * r_.Kh + k;
          if (cell_.exists(r_, g, k)) total(to, k, block);
          else memset(to, 0, sizeof(F) * block);
        }
        if (gate.reads_x) total(ih + row * r_.I, r_.Kh + 1, r_.I);
        if (gate.own_bias) {
          if (bias_hn) total(bias_hn + j, r_.Kh, 1);
        } else if (bias && !call_.layer_norm) {
          total(bias + row, r_.Kh, 1);
        }
      }
    }
    for (long g = slice; call_.layer_norm && g < r_.G; g += slices) {
      F dg = 0, db = 0;
      for (long c = 0; c < count; c++)
        for (long m = 0; m < sums[c].members; m++) dg += sums[c].gain(m)[g], db += sums[c].norm_bias(m, r_.G)[g];
      ((F*)call_.d_gain)[r_.e * r_.G + g] = dg;
      if (bias) bias[g] = db;
    }
    for (long k = slice, size = r_.P * r_.H; k < size; k += slices) {
      F d = 0;
      for (long c = 0; c < count; c++)
        for (long m = 0; m < sums[c].members; m++) d += sums[c].diagonal(m, r_.G)[k];
      ((F*)call_.d_weight_ch)[r_.e * size + k] = d;
    }
  }

 private:
  long size_of(const Part<F>& part) const {
    if (!(part.use & (is_backward_ ? kBackwards : kForwards))) return 0;
    return is_backward_ ? packed_size<F>(part.rows, part.columns) : packed_size<F>(part.columns, part.rows);
  }

  // W[row ...][first ...], a vector's worth of rows, all of one gate: [L][columns], zero where there is no weight.
  void read(long row, long first, long columns, F* to) const {
    int g = r_.gate_count - 1;
    while (r_.gates[g].row > row) g--;
    const Gate& gate = r_.gates[g];
    const long end = first + columns, end_h = end < r_.Kh ? end : r_.Kh, block = cell_.block(r_);
    memset(to, 0, sizeof(F) * L * columns);
    for (long j = row - gate.row; j < row - gate.row + L && j < gate.size; j++, to += columns) {
      const long at = gate.parameter_row + j;
      const F* hh = (const F*)call_.weight_hh + r_.e * call_.weight_hh_trial + at * r_.Kh;
      for (long k = first, next; gate.reads_h && k < end_h; k = next) {
        next = (k / block + 1) * block < end_h ? (k / block + 1) * block : end_h;
        if (cell_.exists(r_, g, k)) memcpy(to + k - first, hh + k, sizeof(F) * (next - k));
      }
      if (first <= r_.Kh && r_.Kh < end) to[r_.Kh - first] = bias(gate, j);
      const long x = first > r_.Kh + 1 ? first : r_.Kh + 1;
      if (gate.reads_x && x < end) {
        const F* ih = (const F*)call_.weight_ih + r_.e * call_.weight_ih_trial + at * r_.I;
        memcpy(to + x - first, ih + x - r_.Kh - 1, sizeof(F) * (end - x));
      }
    }
  }

  F bias(const Gate& gate, long j) const {  // layer norm adds it later
    const void* own = gate.own_bias ? call_.bias_hn : call_.layer_norm ? nullptr : call_.bias;
    if (!own) return F(0);
    return gate.own_bias ? ((const F*)own)[r_.e * call_.bias_hn_trial + j]
                         : ((const F*)own)[r_.e * call_.bias_trial + gate.parameter_row + j];
  }

  const Call& call_;
  Rows<F>& r_;
  const Cell& cell_;
  const bool is_backward_;
};

}  // namespace mistrnn::MISTRNN_ISA
