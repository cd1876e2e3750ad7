// LSTM when many trials of a large layer advance together; equation numbers as in reference.py, primed in the backward pass.
//
// Saved are i, f, g, o and c of every step, [E, T, B, 5 H].
#include "kernels/cuda/stepwise/stepwise.cuh"

enum { kI, kF, kGate, kO, kC };

DEVICE float* saved(const Step& k, int t, int b, int what) {
  return k.args.saved + k.e * k.args.saved_trial + (((long)t * k.args.B + b) * 5 + what) * H + k.unit;
}

#if !BACKWARD

KERNEL(kThreads) begin(const GRID_CONSTANT StepArguments given) {
  const Step k(given);
  for (int b = k.first(); b < k.end(); b++) {
    k.publish(0, H, k.unit, b, load(k.state(-1, b)));
    store(k.carried(b), load(k.args.initial_c + k.state_row(k.args.initial_c_trial, 0, b)));
  }
}

POINTWISE pointwise_0(const GRID_CONSTANT StepArguments given) {
  const Step k(given);
  const GateInput input[4] = {{k, 0}, {k, H}, {k, 2 * H}, {k, 3 * H}};
  for (int b = k.first(); b < k.end(); b++) {
    Vector4 gate[4], h, c = load(k.carried(b));
#pragma unroll
    for (int g = 0; g < 4; g++) gate[g] = load(k.z(b) + g * H + k.unit);
#pragma unroll
    for (int g = 0; g < 4; g++) {
      input[g].add(k, b, gate[g]);
      EACH_UNIT gate[g].v[i] = g == kGate ? tanh_of(gate[g].v[i]) : sigmoid_of(gate[g].v[i]);  // (1) (2) (3) (4)
    }
    EACH_UNIT {
      c.v[i] = gate[kF].v[i] * c.v[i] + gate[kI].v[i] * gate[kGate].v[i];               // (5)
      h.v[i] = gate[kO].v[i] * tanh_of(c.v[i]);                                         // (6)
    }
    k.publish(0, H, k.unit, b, h);
    store(k.args.output + k.row(k.s, b, H) + k.unit, h);
    store(k.carried(b), c);
    if (k.s + 1 == k.args.T) store(k.args.final_c + k.state_row(k.args.B * H, 0, b), c);
    if (kSave) {
#pragma unroll
      for (int g = 0; g < 4; g++) store_streamed(saved(k, k.s, b, g), gate[g]);
      store_streamed(saved(k, k.s, b, kC), c);
    }
  }
}

template <int GEMM> DEVICE float weight_at(const Arguments& args, long e, int row, int k) {
  return args.weight_hh[e * args.weight_hh_trial + (long)row * H + k];
}

#else

POINTWISE pointwise_0(const GRID_CONSTANT StepArguments given) {
  const Step k(given);
  const Arguments& args = k.args;
  GateGradient gradient[4] = {{k, 0}, {k, H}, {k, 2 * H}, {k, 3 * H}};
  for (int b = k.first(); b < k.end(); b++) {
    Vector4 dh = k.d_output(k.s, b), dc = {{0, 0, 0, 0}};
    if (k.s + 1 < args.T) {
      const Vector4 sent = load(k.z(b) + k.unit);
      EACH_UNIT dh.v[i] += sent.v[i];
      dc = load(k.carried(b));
    } else if (args.d_final_c) {
      dc = load(args.d_final_c + k.state_row(args.d_final_c_trial, 0, b));
    }
    if (k.s < 0) {  // the state before the first step
      if (args.d_initial_h) store(args.d_initial_h + k.state_row(args.B * H, 0, b), dh);
      if (args.d_initial_c) store(args.d_initial_c + k.state_row(args.B * H, 0, b), dc);
      continue;
    }
    Vector4 gate[4], d[4];
#pragma unroll
    for (int g = 0; g < 4; g++) gate[g] = load_streamed(saved(k, k.s, b, g));
    const Vector4 c = load_streamed(saved(k, k.s, b, kC));
    const Vector4 before = k.s > 0 ? load(saved(k, k.s - 1, b, kC)) : load(args.initial_c + k.state_row(args.initial_c_trial, 0, b));
    EACH_UNIT {
      const float i_ = gate[kI].v[i], f = gate[kF].v[i], g = gate[kGate].v[i], o = gate[kO].v[i], t = tanh_of(c.v[i]);
      dc.v[i] += dh.v[i] * o * (1 - t * t);                                             // (6')
      d[kO].v[i] = dh.v[i] * t * o * (1 - o);                                           // (4')
      d[kI].v[i] = dc.v[i] * g * i_ * (1 - i_);                                         // (1')
      d[kF].v[i] = dc.v[i] * before.v[i] * f * (1 - f);                                 // (2')
      d[kGate].v[i] = dc.v[i] * i_ * (1 - g * g);                                       // (3')
      dc.v[i] *= f;                                                                     // (5')
    }
    store(k.carried(b), dc);
#pragma unroll
    for (int g = 0; g < 4; g++) {
      k.publish(0, 4 * H, g * H + k.unit, b, d[g]);
      gradient[g].write<true>(k, b, d[g]);
    }
  }
  if (k.s >= 0)
#pragma unroll
    for (int g = 0; g < 4; g++) gradient[g].finish(k);
}

template <int GEMM> DEVICE float weight_at(const Arguments& args, long e, int row, int k) {
  return args.weight_hh[e * args.weight_hh_trial + (long)k * H + row];
}

#endif
