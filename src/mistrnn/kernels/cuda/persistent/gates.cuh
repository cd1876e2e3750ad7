// What the cells share: the inputs' share of a gate, layer norm, the state forwards, its gradient backwards.
//
// A cell says which gates it has: `kGates` of H units each, whose parameters begin at row `gate_row(g)` of G in all, and
// `kExtra` rows beside them (MIST's softmax) at row 0. Backwards it writes gradients of `kGradients` kinds of
// pre-activations, each from `gradient_column(g)` on. Its record of a step begins with `kSaved` vectors of its own, `kFresh`
// among them is the new state before zoneout and `kState` the one after it (-1: not there); layer norm adds two for each
// gate. `kPublishesAll`: the products read the last state even where a sequence begins afresh.
#pragma once

#include "kernels/cuda/persistent/gemm.cuh"

constexpr bool kSumsX = BACKWARD && kFusedInput;  // the gradient of weight_ih is added up on the way
constexpr int kReductions = 1 + kSumsX + kDiagonal + kNorm;  // sums for: bias, weight of the only input, diagonal weight, gain
constexpr int kParameterRows = 1 + kFusedInput + kDiagonal + kNorm;  // bias, weight of the only input, diagonal weight, gain
constexpr int kDiagonalRow = 1 + kFusedInput, kDiagonalReduction = 1 + kSumsX;  // places among them

template <class Cell> struct Gates {
  static constexpr bool kAllBegin = false;  // whether warps without units take part in begin_forward
  Softmax softmax;
  Values h;     // forwards the state before this step; backwards what a step sends to it beside the products
  Values drop;
  Real parameters[Cell::kGates][kParameterRows][2 * TW], lag_parameters[kSlots][kParameterRows];
  Values projected[Cell::kGates];      // of several inputs: their products with the weights, at this step
  Real projected_lags[kSlots][kRows];
  Real sum[Cell::kGradients][kReductions][2 * TW], lag_sums[kSlots][kReductions];  // backwards, over all of the thread's sequences

  static METHOD constexpr int unit_index(int i) { return i / (4 * NT) * 2 + i / 2 % 2; }

  METHOD void begin(Block& k) {
    const Arguments& args = k.args;
    EACH_VALUE drop[i] = k.dropout(i);
    auto fill = [&](Real(&to)[kParameterRows], int row, bool exists) {
      to[0] = exists && kBias ? args.bias[k.e * args.bias_trial + row] : Real(0);
      if (kFusedInput) to[kFusedInput] = exists ? args.weight_ih[k.e * args.weight_ih_trial + row] : Real(0);
      if (kNorm) to[kParameterRows - 1] = exists ? args.gain[k.e * args.gain_trial + row] : Real(0);
    };
#pragma unroll
    for (int g = 0; g < Cell::kGates; g++)
#pragma unroll
      for (int n = 0; n < 2 * TW; n++) {
        const int unit = k.unit + n / 2 * 16 + n % 2 * 8;
        Real column[kParameterRows];
        fill(column, Cell::gate_row(g) + unit, unit < H);
        if (kDiagonal)
          column[kDiagonalRow] = diagonal_row(g) >= 0 && unit < H
                                     ? args.weight_ch[k.e * args.weight_ch_trial + diagonal_row(g) * H + unit] : Real(0);
#pragma unroll
        for (int what = 0; what < kParameterRows; what++) parameters[g][what][n] = column[what];
      }
    if (Cell::kLagRows > 0) EACH_SLOT fill(lag_parameters[slot], d, d < D);
  }

  // Ask for what gate g needs of the input of step s: while a product is under way, because memory takes long to answer.
  METHOD void load_projected(Block& k, int s, int g) {
    if (kFusedInput) return;
    EACH_VALUE {
      const Real* from = k.projected_at(s, row_of(i)) + Cell::gate_row(g) + unit_of(i);
      projected[g][i] = k.has(i) && k.is_active(s, i) ? *from : Real(0);
    }
    k.prefetch_projected(s, Cell::gate_row(g));
  }
  METHOD void load_projected_lags(Block& k, int s) {
    if (kFusedInput) return;
    EACH_SLOT EACH_ROW
      projected_lags[slot][j] = d < D && k.in_batch(j) && k.active(s, j) ? k.projected_at(s, j)[d - k.unit] : Real(0);
  }
  // ... all gates.
  METHOD void load_input(Block& k, int s) {
    k.load_x(s);
#pragma unroll
    for (int g = 0; g < Cell::kGates; g++) load_projected(k, s, g);
  }

  // v += the input's share of gate g, with the bias unless it comes after the norm.
  METHOD void add_input(Block& k, int g, Values& v) const {
    EACH_VALUE {
      v[i] += kFusedInput ? parameters[g][kFusedInput][unit_index(i)] * k.x[row_of(i)] : projected[g][i];
      if (!kNorm) v[i] += parameters[g][0][unit_index(i)];
    }
  }
  // The diagonal weight of gate g for the unit of value i, and the sum for its gradient.
  METHOD Real diagonal(int g, int i) const { return parameters[g][kDiagonalRow][unit_index(i)]; }
  METHOD void diagonal_gradient(int g, const Values& v, const Values& c) {
    EACH_VALUE sum[g][kDiagonalReduction][unit_index(i)] += v[i] * c[i];
  }
  METHOD Real lag_input(Block& k, int slot, int j) const {
    const Real given = kFusedInput ? lag_parameters[slot][kFusedInput] * k.x[j] : projected_lags[slot][j];
    return kNorm ? given : given + lag_parameters[slot][0];
  }

  // Layer norm over the units of gate g, or of each group of it: norm(v) * gain + bias.
  static constexpr int kGroups = Cell::kGroups, kGroupUnits = H / Cell::kGroups;
  METHOD bool in_group(Block& k, int i, int n) const {
    return k.has(i) && (kGroups == 1 || (k.unit + unit_of(i)) / kGroupUnits == n);
  }
  METHOD Real* normed(Block& k, int s, int g) const { return k.saved(s, Cell::kSaved + 2 * g); }
  METHOD Real* scales(Block& k, int s, int g) const { return k.saved(s, Cell::kSaved + 2 * g + 1); }

  METHOD void norm(Block& k, int s, int g, Values& v) {
    if (!kNorm) return;
    Real mean[kGroups][kRows], square[kGroups][kRows];
    Values scale;
#pragma unroll
    for (int n = 0; n < kGroups; n++) {
      EACH_ROW mean[n][j] = square[n][j] = 0;
      EACH_VALUE if (in_group(k, i, n)) mean[n][row_of(i)] += v[i];
    }
    k.sum_over_units(mean);
#pragma unroll
    for (int n = 0; n < kGroups; n++)
      EACH_VALUE if (in_group(k, i, n)) {
        v[i] -= mean[n][row_of(i)] / kGroupUnits;
        square[n][row_of(i)] += v[i] * v[i];
      }
    k.sum_over_units(square);
    EACH_VALUE scale[i] = 0;
#pragma unroll
    for (int n = 0; n < kGroups; n++)
      EACH_VALUE if (in_group(k, i, n)) scale[i] = 1 / sqrt(square[n][row_of(i)] / kGroupUnits + Real(1e-5));
    EACH_VALUE v[i] *= scale[i];
    if (kSave) store_all(normed(k, s, g), v), store_all(scales(k, s, g), scale);
    EACH_VALUE v[i] = v[i] * parameters[g][kParameterRows - 1][unit_index(i)] + parameters[g][0][unit_index(i)];
  }
  // From the gradient of its result to that of what went in; adds up the gradients of gain and bias.
  METHOD void norm_backward(Block& k, int s, int g, Values& v) {
    if (!kNorm) return;
    Real both[2 * kGroups][kRows];
    Values hat, scale;
    load_all(normed(k, s, g), hat), load_all(scales(k, s, g), scale);
#pragma unroll
    for (int n = 0; n < 2 * kGroups; n++) EACH_ROW both[n][j] = 0;
    EACH_VALUE {
      if (!k.has(i) || !k.is_active(s, i)) v[i] = hat[i] = scale[i] = 0;
      sum[g][0][unit_index(i)] += v[i];
      sum[g][kReductions - 1][unit_index(i)] += v[i] * hat[i];
      v[i] *= parameters[g][kParameterRows - 1][unit_index(i)];
#pragma unroll
      for (int n = 0; n < kGroups; n++)
        if (in_group(k, i, n)) both[2 * n][row_of(i)] += v[i], both[2 * n + 1][row_of(i)] += v[i] * hat[i];
    }
    k.sum_over_units(both);
#pragma unroll
    for (int n = 0; n < kGroups; n++)
      EACH_VALUE if (in_group(k, i, n))
        v[i] = scale[i] * (v[i] - both[2 * n][row_of(i)] / kGroupUnits - hat[i] * both[2 * n + 1][row_of(i)] / kGroupUnits);
  }

  // The state before the first step, as it is handed over, and what the products read of it. The caller arrives.
  METHOD void begin_forward(Block& k) {
    k.load_state(k.args.initial_h, k.args.initial_h_trial, M - 1, h);
    EACH_VALUE if (k.end(row_of(i)) > 0 && !k.can_read(0, 1, row_of(i))) h[i] = 0;
    publish_state(k);
  }
  METHOD void publish_state(Block& k) {
    Values read;
    EACH_VALUE read[i] = kDropout ? h[i] * drop[i] : h[i];
    k.publish(0, read);
  }
  // Make the new state the one before the next step, which reads it, and then write it. `then` is done before arriving.
  template <class Then> METHOD void new_state(Block& k, int s, Values& fresh, Then then) {
    Values now;
    EACH_VALUE {
      now[i] = k.apply_zoneout(k.args.keep_h, k.args.keep_h_trial, s, i, h[i], fresh[i]);
      if (!k.is_active(s, i)) now[i] = 0;
      h[i] = now[i];
    }
    if (!Cell::kPublishesAll) mask_resets(k, s + 1, h);
    publish_state(k);
    then();
    k.arrive();
    if (kSave && Cell::kFreshState >= 0) store_all(k.saved(s, Cell::kFreshState), fresh);
    if (Cell::kState >= 0) store_all(k.saved(s, Cell::kState), now);
    if (kReverse) {
      Real* to = k.args.output + k.e * k.args.T * k.args.B * H;
      EACH_VALUE if (k.has(i)) to[k.at_time(s, i, H)] = now[i];
    } else {
      k.store(k.output_now, H, now);
      k.output_now += k.args.B * H;
      k.projected_now += k.args.B * kG;
    }
  }
  METHOD void new_state(Block& k, int s, Values& fresh) {
    new_state(k, s, fresh, [] {});
  }
  // Zeros where step s begins afresh.
  METHOD void mask_resets(Block& k, int s, Values& v) const {
    if (kReset) EACH_VALUE if (s < k.end(row_of(i)) && !k.can_read(s, 1, row_of(i))) v[i] = 0;
  }
  METHOD void finish_forward(Block& k) {
    const Real* from = k.args.output + k.e * k.args.T * k.args.B * H;
    auto load = [&](int m, Values& value) {
      EACH_VALUE {
        const int j = row_of(i), s = k.end(j) - (M - m);
        value[i] = 0;
        if (k.has(i) && k.can_read(k.end(j), M - m, j))
          value[i] = s >= 0 ? from[k.at_time(s, i, H)] : k.args.initial_h[k.e * k.args.initial_h_trial + k.at(M + s, i, H)];
      }
    };
    in_batches(M, load, [&](int m, Values& value) { k.store_state(k.args.final_h, M, m, value); });
  }

  METHOD void begin_backward(Block& k) {
#pragma unroll
    for (int kind = 0; kind < kReductions; kind++) {
#pragma unroll
      for (int g = 0; g < Cell::kGradients; g++)
#pragma unroll
        for (int n = 0; n < 2 * TW; n++) sum[g][kind][n] = 0;
      EACH_SLOT lag_sums[slot][kind] = 0;
    }
    EACH_VALUE h[i] = 0;
  }
  // What the output and the final state send to the state of step s.
  METHOD void load_d_output(Block& k, int s, Values& dh) const {  // from the last step on
    const Arguments& args = k.args;
    EACH_VALUE dh[i] = 0;
    if (args.d_output && s >= 0) {
      EACH_VALUE if (k.has(i) && k.is_active(s, i))
        dh[i] = kReverse ? args.d_output[k.e * args.d_output_trial + k.time(s, row_of(i)) * args.d_output_time +
                                         (k.row + sequence_of(row_of(i))) * args.d_output_sequence + k.unit + unit_of(i)]
                         : k.d_output_now[sequence_of(row_of(i)) * args.d_output_sequence + unit_of(i)];
      k.d_output_now -= args.d_output_time;
    }
    if (args.d_final_h && (kLengths || s + M >= (int)args.T))  // else all sequences end together, later
      EACH_VALUE {
        const int j = row_of(i), back = k.end(j) - s;
        if (back <= M && back > 0 && k.has(i) && k.can_read(k.end(j), back, j))
          dh[i] += args.d_final_h[k.e * args.d_final_h_trial + k.at(M - back, i, H)];
      }
  }
  // dh: what the step after s sends to the state of step s, by its product (already in dh) and by what it left in h.
  METHOD void from_next_step(Block& k, int s, Values& dh) {
    EACH_VALUE {
      const int j = row_of(i);
      if (kDropout) dh[i] *= drop[i];
      dh[i] = s + 1 < k.end(j) && k.can_read(s + 1, 1, j) ? dh[i] + h[i] : Real(0);
      h[i] = 0;
    }
  }
  // Zoneout's share of dh goes one step back. dh is complete here: the full derivative with respect to the state of step s.
  METHOD void split_zoneout(Block& k, int s, Values& dh) {
    write_probe(k, k.args.d_probe_h, s, dh);
    if (kMasks || kMixture) EACH_VALUE h[i] += k.zoneout_share(k.args.keep_h, k.args.keep_h_trial, s, i, dh[i]);
  }
  METHOD void write_probe(Block& k, Real* to, int s, const Values& v) const {
    if (kProbe && to)
      EACH_VALUE if (k.has(i)) to[k.e * k.args.T * k.args.B * H + k.at_time(s, i, H)] = k.is_active(s, i) ? v[i] : Real(0);
  }
  METHOD void clear_padding(Block& k, int s, Values& v) const {
    if (kLengths) EACH_VALUE if (!k.is_active(s, i)) v[i] = 0;
  }
  // Write the gradient of a gate's pre-activations, and add up what it gives to bias and input weights.
  METHOD void gradient(Block& k, int s, int g, Values& v) {
    EACH_VALUE {
      if (!kNorm) sum[g][0][unit_index(i)] += v[i];
      if (kSumsX) sum[g][kSumsX][unit_index(i)] += v[i] * k.x[row_of(i)];
    }
    k.store(k.gradient_now + Cell::gradient_column(g), kGradientStride, v);
  }
  // The sums over steps and over the sequences of this block, to the block's own place: [E, blocks, kinds, columns].
  METHOD void finish_sums(Block& k) {
    Real* to = k.args.sums + (k.e * (gridDim.x / C) + blockIdx.x / C) * kReductions * kGradientColumns;
#pragma unroll
    for (int kind = 0; kind < kReductions; kind++) {
#pragma unroll
      for (int g = 0; g < Cell::kGradients; g++)
#pragma unroll
        for (int n = 0; n < 2 * TW; n++) {
          const Real total = over_sequences(sum[g][kind][n]);
          const int unit = k.unit + n / 2 * 16 + n % 2 * 8;
          if ((k.lane & 3) == 0 && unit < H) to[kind * kGradientColumns + Cell::gradient_column(g) + unit] = total;
        }
      if (Cell::kLagRows > 0)
        EACH_SLOT {
          const Real total = over_sequences(lag_sums[slot][kind]);
          if (k.cta == 0 && k.warp == 0 && (k.lane & 3) == 0 && d < D) to[kind * kGradientColumns + d] = total;
        }
    }
  }
  static METHOD Real over_sequences(Real v) {
    v += shuffle_xor(v, 1);
    return v + shuffle_xor(v, 2);
  }
  // The gradient of the state before the first step, of a cell that reads only one.
  METHOD void finish_backward(Block& k, Values& dh) {
    Values d_out;
    from_next_step(k, -1, dh);
    load_d_output(k, -1, d_out);
    EACH_VALUE dh[i] += d_out[i];
    if (k.args.d_initial_h) k.store_state(k.args.d_initial_h, 1, 0, dh);
  }
};

// A cell whose record is the new state alone: on the way back it is read one step ahead, with what comes from outside.
template <class Cell> struct OneSavedVector : Gates<Cell> {
  Values state, d_out;

  METHOD void load(Block& k, int s) {
    if (s < 0) return;
    load_all(k.saved(s, 0), state);
    this->load_d_output(k, s, d_out);
    k.load_x(s);
  }
  METHOD void begin_backward(Block& k) {
    Gates<Cell>::begin_backward(k);
    load(k, (int)k.args.T - 1);
  }
};

// Which unit a place of u belongs to, or -1.
DEVICE int unit_at(int place) {
  const int unit = place / 16 * 16 + place % 2 * 8 + place % 16 / 2;
  return unit < H ? unit : -1;
}
DEVICE Real element(const Arguments& args, long e, int row, int column, int columns) {
  return row < 0 || column < 0 ? Real(0) : args.weight_hh[e * args.weight_hh_trial + (long)row * columns + column];
}
// The weights of a product over gates: forwards a row block is a gate of the block's own units, which read all units;
// backwards its own units, which all units of gate after gate read.
template <class Cell> DEVICE Real gate_weight(const Arguments& args, long e, int cta, int block, int local, int k) {
  const int own = cta * kUnits + local < H ? cta * kUnits + local : -1, other = unit_at(k % (C * kUnits));
  if (own < 0 || other < 0) return 0;
#if BACKWARD
  return element(args, e, Cell::gate_row(k / (C * kUnits)) + other, own, H);
#else
  return element(args, e, Cell::gate_row(block) + own, other, H);
#endif
}
