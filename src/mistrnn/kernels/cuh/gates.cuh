// What the cells share: the inputs' share of a gate, layer norm, the state forwards, its gradient backwards.
//
// A cell says which gates it has: `kGates` of H units each, whose parameters begin at row `gate_row(g)` of G in all, and
// `kExtra` rows beside them (MIST's softmax) at row 0. Backwards it writes `kColumns` gradients of pre-activations a step.
#pragma once

#include "kernels/cuh/product.cuh"

constexpr int kG = PARAMETER_ROWS, kS = SAVED_SIZE, kColumns = GRADIENT_COLUMNS;
constexpr int kKinds = 1 + kSumsX + kNorm;  // of sums: the bias, the only input, the gain
constexpr int kTableRows = I + 1 + kNorm;   // weights of the inputs, bias, gain

template <class Cell> struct Gates {
  Real h[4];  // forwards the state before this step; backwards what a step sends to it beside the products
  Real drop[4];
  Real sum[Cell::kGradients][kKinds][4], sum_extra[2][kKinds];  // backwards

  METHOD void begin(Block& k) {
    EACH_UNIT drop[i] = k.dropout(i);
    // The table: for each gate its places by input, then the bias, then the gain.
    const Arguments& args = k.args;
    for (int n = threadIdx.x; n < Cell::kGates * kPlaces + Cell::kExtra; n += W * 32) {
      const int g = n / kPlaces, place = n % kPlaces, local = place / 4 + place % 4 * kQuarter;
      const bool extra = n >= Cell::kGates * kPlaces;
      const int unit = k.cta * kUnits + local;
      const bool has = extra || (local < kUnits && unit < H);
      const int row = extra ? n - Cell::kGates * kPlaces : Cell::gate_row(g) + unit;
      for (int what = 0; what < kTableRows; what++) {
        Real value = 0;
        if (has && what < I) value = args.weight_ih[k.e * args.weight_ih_trial + (long)row * I + what];
        if (has && what == I && kBias && (kNorm || !kProjected)) value = args.bias[k.e * args.bias_trial + row];
        if (has && what > I) value = args.gain[k.e * args.gain_trial + row];
        if (extra) k.table[Cell::kGates * kTableRows * kPlaces + row * kTableRows + what] = value;
        else k.table[(g * kTableRows + what) * kPlaces + place] = value;
      }
    }
  }

  METHOD void table(Block& k, int g, int what, Real (&v)[4]) const {
    load_four(k.table + (g * kTableRows + what) * kPlaces + (k.tau < kQuarter ? 4 * k.tau : 0), v);
  }
  METHOD const Real* extra_table(Block& k, int d) const {
    return k.table + Cell::kGates * kTableRows * kPlaces + d * kTableRows;
  }

  // v += the input's share of gate g, with the bias unless it comes after the norm.
  METHOD void add_input(Block& k, int s, int g, Real (&v)[4]) {
    if (kProjected) {
      const Real* from = k.args.projected + ((k.e * k.args.T + k.time(s)) * k.args.B + k.row) * kG + Cell::gate_row(g) + k.first_unit();
      EACH_UNIT v[i] += k.active(s) ? from[k.next(i)] : Real(0);
    } else {
      Real weight[4];
#pragma unroll
      for (int n = 0; n < I; n++) {
        table(k, g, n, weight);
        EACH_UNIT v[i] += weight[i] * k.x[n];
      }
      if (kNorm || !kBias) return;
      table(k, g, I, weight);
      EACH_UNIT v[i] += weight[i];
    }
  }
  METHOD Real extra_input(Block& k, int s, int d) {
    if (kProjected) return k.active(s) ? k.args.projected[((k.e * k.args.T + k.time(s)) * k.args.B + k.row) * kG + d] : Real(0);
    Real v = kNorm || !kBias ? Real(0) : extra_table(k, d)[I];
#pragma unroll
    for (int n = 0; n < I; n++) v += extra_table(k, d)[n] * k.x[n];
    return v;
  }

  // Layer norm over the units of gate g, or of each group of it: norm(v) * gain + bias. What the backward pass needs is
  // saved behind the cell's own: the normalised values by parameter row, and a scale for every block of rows.
  static constexpr int kNormed = kS - kG - Cell::kBlocks, kScales = kS - Cell::kBlocks;
  static constexpr int kGroups = Cell::kGroups, kGroupUnits = H / Cell::kGroups;
  METHOD bool in_group(Block& k, int i, int n) const {
    return k.has(i) && (kGroups == 1 || k.unit(i) / kGroupUnits == n);
  }

  METHOD void norm(Block& k, int s, int g, Real (&v)[4]) {
    if (!kNorm) return;
    Real mean[kGroups], square[kGroups], gain[4], bias[4];
#pragma unroll
    for (int n = 0; n < kGroups; n++) {
      mean[n] = square[n] = 0;
      EACH_UNIT if (in_group(k, i, n)) mean[n] += v[i];
    }
    k.add_over_units(mean);
#pragma unroll
    for (int n = 0; n < kGroups; n++)
      EACH_UNIT if (in_group(k, i, n)) {
        v[i] -= mean[n] / kGroupUnits;
        square[n] += v[i] * v[i];
      }
    k.add_over_units(square);
    Real* saved = k.saved(s);
    const bool save = kSave && k.active(s);
    table(k, g, I + 1, gain), table(k, g, I, bias);
#pragma unroll
    for (int n = 0; n < kGroups; n++) {
      const Real scale = 1 / sqrt(square[n] / kGroupUnits + Real(1e-5));
      EACH_UNIT if (in_group(k, i, n)) {
        v[i] *= scale;
        if (save) saved[kNormed + Cell::gate_row(g) + k.unit(i)] = v[i];
        v[i] = v[i] * gain[i] + bias[i];
      }
      if (save && k.cta == 0 && k.tau == 0 && k.in_batch) saved[kScales + Cell::norm_block(g) + n] = scale;
    }
  }
  // From the gradient of its result to that of what went in; adds up the gradients of gain and bias.
  METHOD void norm_backward(Block& k, int s, int g, Real (&v)[4]) {
    if (!kNorm) return;
    const Real* saved = k.saved(s);
    const bool active = k.active(s);
    Real normed[4], gain[4], both[2 * kGroups];
    table(k, g, I + 1, gain);
#pragma unroll
    for (int n = 0; n < 2 * kGroups; n++) both[n] = 0;
    EACH_UNIT {
      normed[i] = active ? saved[kNormed + Cell::gate_row(g) + k.unit(i)] : Real(0);
      sum[g][0][i] += v[i];
      sum[g][kKinds - 1][i] += v[i] * normed[i];
      v[i] *= gain[i];
#pragma unroll
      for (int n = 0; n < kGroups; n++)
        if (in_group(k, i, n)) both[2 * n] += v[i], both[2 * n + 1] += v[i] * normed[i];
    }
    k.add_over_units(both);
#pragma unroll
    for (int n = 0; n < kGroups; n++) {
      const Real scale = active ? saved[kScales + Cell::norm_block(g) + n] : Real(0);
      EACH_UNIT if (in_group(k, i, n))
        v[i] = scale * (v[i] - both[2 * n] / kGroupUnits - normed[i] * both[2 * n + 1] / kGroupUnits);
    }
  }

  // The state before the first step, and what the products read of it.
  METHOD void begin_forward(Block& k) {
    k.past(k.length > 0 ? 0 : k.length, 1, h);
    publish_state(k);
  }
  METHOD void publish_state(Block& k) {
    Real read[4];
    EACH_UNIT read[i] = kDropout ? h[i] * drop[i] : h[i];
    k.publish(0, read);
  }
  // Write the new state, and make it the one before the next step.
  METHOD void new_state(Block& k, int s, Real (&fresh)[4]) {
    const bool active = k.active(s);
    if (kSave && kMixture && Cell::kSavesFresh && active) k.store(k.saved(s) + Cell::kSaved + k.first_unit(), fresh);
    EACH_UNIT {
      h[i] = k.keep(k.args.keep_h, k.args.keep_h_trial, s, i, h[i], fresh[i]);
      if (!active) h[i] = 0;
    }
    k.store((Real*)k.output_at + k.by_time(s), h);
    if (kReset && s + 1 < k.length && !k.sees(s + 1, 1)) EACH_UNIT h[i] = 0;
    publish_state(k);
  }
  METHOD void finish_forward(Block& k) {
    for (int m = 0; m < M; m++) {
      Real value[4];
      k.past(k.length, M - m, value);
      k.store(k.args.final_h + k.in_state(m, (long)M * k.step_h), value);
    }
  }

  // Backwards.
  const Real* outer_at;  // this thread's place in d_output
  Real* gradient_at;     // ... and in dz
  int step_outer, step_gradient;

  METHOD void begin_backward(Block& k) {
    const Arguments& args = k.args;
#pragma unroll
    for (int kind = 0; kind < kKinds; kind++) {
#pragma unroll
      for (int g = 0; g < Cell::kGradients; g++) EACH_UNIT sum[g][kind][i] = 0;
      sum_extra[0][kind] = sum_extra[1][kind] = 0;
    }
    EACH_UNIT h[i] = 0;
    outer_at = args.d_output + k.e * args.d_output_trial + k.row * args.d_output_sequence + k.first_unit();
    gradient_at = args.dz + (k.e * args.T * args.B + k.row) * kColumns;
    step_outer = (int)args.d_output_time, step_gradient = (int)args.B * kColumns;
  }
  // What the output and the final state send to the state of step s.
  METHOD void load_outer(Block& k, int s, Real (&dh)[4]) const {
    EACH_UNIT dh[i] = 0;
    if (k.args.d_output && s >= 0 && k.active(s)) k.load(outer_at + (long)k.time(s) * step_outer, dh);
    const int back = k.length - s;
    if (k.args.d_final_h && back <= M && back > 0 && k.sees(k.length, back)) {
      const Real* from = k.args.d_final_h + k.in_state(M - back, k.args.d_final_h_trial);
      EACH_UNIT dh[i] += from[k.next(i)];
    }
  }
  // What the step after s sends to the state of step s: by the product of row block 0, and what it left in h.
  METHOD void sent_back(Block& k, int s, int ranges, Real (&dh)[4]) {
    const bool seen = s + 1 < k.length && k.sees(s + 1, 1);
    k.product(0, ranges, dh);
    EACH_UNIT {
      if (kDropout) dh[i] *= drop[i];
      dh[i] = seen ? dh[i] + h[i] : Real(0);
      h[i] = 0;
    }
  }
  // The new state as the backward pass needs it: before zoneout.
  METHOD void fresh_again(Block& k, int s, Real (&fresh)[4]) const {
    EACH_UNIT fresh[i] = 0;
    if (k.active(s)) k.load(kMixture ? k.saved(s) + Cell::kSaved + k.first_unit() : k.output_at + k.by_time(s), fresh);
  }
  METHOD void split_kept(Block& k, int s, Real (&dh)[4]) {
    if (kMasks || kMixture) EACH_UNIT h[i] += k.kept_share(k.args.keep_h, k.args.keep_h_trial, s, i, dh[i]);
  }
  // Write the gradient of a gate's pre-activations, and add up what it gives to bias and input weights.
  METHOD void gradient(Block& k, int s, int g, Real (&v)[4]) {
    EACH_UNIT {
      if (!k.active(s)) v[i] = 0;
      if (!kNorm) sum[g][0][i] += v[i];
      if (kSumsX) sum[g][kSumsX][i] += v[i] * k.x[0];
    }
    k.store(gradient_at + (long)s * step_gradient + Cell::gradient_column(g) + k.first_unit(), v);
  }
  METHOD void extra_gradient(Block& k, int s, int slot, int d, Real v) {
    if (k.cta == 0) gradient_at[(long)s * step_gradient + d] = v;
    if (!kNorm) sum_extra[slot][0] += v;
    if (kSumsX) sum_extra[slot][kSumsX] += v * k.x[0];
  }
  METHOD void finish_sums(Block& k) const {
    Real* to = k.args.sums + (k.e * k.args.B + k.row) * kKinds * kColumns;
#pragma unroll
    for (int kind = 0; kind < kKinds; kind++) {
#pragma unroll
      for (int g = 0; g < Cell::kGradients; g++)
        k.store(to + kind * kColumns + Cell::gradient_column(g) + k.first_unit(), sum[g][kind]);
      if (Cell::kExtra > 0 && k.cta == 0 && k.owns_extra())
#pragma unroll
        for (int slot = 0; slot < kSlots; slot++)
          if (k.tau + slot * 8 < D) to[kind * kColumns + k.tau + slot * 8] = sum_extra[slot][kind];
    }
  }
  // The gradient of the state before the first step, of a cell that reads only one.
  METHOD void finish_backward(Block& k, int ranges) {
    Real dh[4], outer[4];
    sent_back(k, -1, ranges, dh);
    load_outer(k, -1, outer);
    EACH_UNIT dh[i] += outer[i];
    if (k.args.d_initial_h) k.store(k.args.d_initial_h + k.in_state(0, k.step_h), dh);
  }
};

// Where the weights of a product stand: its rows are places of this block's units in `gate` after gate, its columns those
// of all units; backwards the other way round.
DEVICE int own_unit(int cta, int place) {
  const int local = place / 4 + place % 4 * kQuarter, unit = cta * kUnits + local;
  return local < kUnits && unit < H ? unit : -1;
}
DEVICE int any_unit(int place) { return own_unit(place / kPlaces, place % kPlaces); }

DEVICE Real element(const Arguments& args, long e, int row, int column, int columns) {
  return row < 0 || column < 0 ? Real(0) : args.weight_hh[e * args.weight_hh_trial + (long)row * columns + column];
}
template <class Cell> DEVICE Real gate_weight(const Arguments& args, long e, int cta, int row, int k) {
#if BACKWARD
  const int unit = any_unit(k % (C * kPlaces)), column = own_unit(cta, row), g = k / (C * kPlaces);
#else
  const int unit = own_unit(cta, row % kPlaces), column = any_unit(k), g = row / kPlaces;
#endif
  return element(args, e, unit < 0 ? -1 : Cell::gate_row(g) + unit, column, H);
}
