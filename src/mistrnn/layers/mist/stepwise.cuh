// MIST when many trials of a large layer advance together; equation numbers as in reference.py, primed in the backward pass.
//
// Saved are r of all steps, [E, T, B, H], and then a, [E, T, B, D]. Lane d of every warp has delay d.
#include "kernels/cuda/stepwise/stepwise.cuh"

constexpr int kRowR = D, kRowH = D + H;  // where the parameters of the gates begin, and the columns of their gradients
constexpr int kDepthOfGates = H + kDepthTile;  // backwards, gate and softmax are read together

DEVICE float* saved_r(const Step& k, int t, int b) { return k.args.saved + k.e * k.args.saved_trial + ((long)t * k.args.B + b) * H + k.unit; }
DEVICE float* saved_a(const Step& k, int t, int b) {
  return k.args.saved + k.e * k.args.saved_trial + k.args.T * k.args.B * H + ((long)t * k.args.B + b) * D + k.lane;
}
// dm of the last M steps that were computed.
DEVICE float* dm_of(const Step& k, int t, int b) { return k.args.workspace + ((k.e * M + t % M) * k.args.B + b) * H + k.unit; }

DEVICE float over_delays(float v) {
#pragma unroll
  for (int distance = 1; distance < 16; distance *= 2) v += shuffle_xor(v, distance);
  return v;
}

#if !BACKWARD

KERNEL(kThreads) begin(const GRID_CONSTANT StepArguments given) {
  const Step k(given);
  for (int b = k.first(); b < k.end(); b++) k.publish(0, H, k.unit, b, load(k.state(-1, b)));
}

// From what the gate and the softmax have read: the mixed history.
POINTWISE pointwise_0(const GRID_CONSTANT StepArguments given) {
  const Step k(given);
  const Arguments& args = k.args;
  const GateInput input(k, kRowR);
  const int own = k.lane < D ? k.lane : 0;
  const float weight = kFusedInput ? args.weight_ih[k.e * args.weight_ih_trial + own] : 0;
  const float bias = kBias ? args.bias[k.e * args.bias_trial + own] : 0;
  for (int b = k.first(); b < k.end(); b++) {
    Vector4 history[D], m = {{0, 0, 0, 0}}, r = load(k.z(b) + k.unit);
    EACH_DELAY history[d] = load_from(delay(d), k.state(k.s - delay(d), b));
    float a = k.z(b)[H + own] + (kFusedInput ? weight * k.x(b) : args.projected[k.row(k.s, b, kG) + own]) + bias;
    if (k.lane >= D) a = -3.4e38f;  // as low as float32 goes
    float top = a;
#pragma unroll
    for (int distance = 1; distance < 16; distance *= 2) {
      const float other = shuffle_xor(top, distance);
      top = other > top ? other : top;
    }
    a = k.lane < 16 ? exp_of(a - top) : 0;
    a *= reciprocal(over_delays(a));                                                    // (1)
    EACH_DELAY {
      const float share = shuffle(a, d);
      EACH_UNIT m.v[i] += share * history[d].v[i];                                      // (3)
    }
    input.add(k, b, r);
    EACH_UNIT r.v[i] = sigmoid_of(r.v[i]);                                              // (2)
    EACH_UNIT m.v[i] *= r.v[i];
    k.publish(1, H, k.unit, b, m);
    if (kSave) {
      store_streamed(saved_r(k, k.s, b), r);
      if (threadIdx.x < D) *saved_a(k, k.s, b) = a;
    }
  }
}

POINTWISE pointwise_1(const GRID_CONSTANT StepArguments given) {
  const Step k(given);
  const GateInput input(k, kRowH);
  for (int b = k.first(); b < k.end(); b++) {
    Vector4 h = load(k.z(b) + k.unit);
    input.add(k, b, h);
    EACH_UNIT h.v[i] = tanh_of(h.v[i]);                                                 // (4)
    store(k.args.output + k.row(k.s, b, H) + k.unit, h);
    k.publish(0, H, k.unit, b, h);
  }
}

template <int GEMM> DEVICE float weight_at(const Arguments& args, long e, int row, int k) {
  const int rows = GEMM == 0 ? H + D : H;  // the softmax's rows come after the gate's
  const int at = GEMM == 1 ? kRowH + row : row < H ? kRowR + row : row - H;
  return row < rows ? args.weight_hh[e * args.weight_hh_trial + (long)at * H + k] : 0;
}

#else

// The gradient of a state, from everything that has read it; steps before the first have one, too.
POINTWISE pointwise_0(const GRID_CONSTANT StepArguments given) {
  const Step k(given);
  const Arguments& args = k.args;
  GateGradient gradient(k, kRowH);
  int own_delay = 0;
  EACH_DELAY if (d == k.lane) own_delay = delay(d);
  for (int b = k.first(); b < k.end(); b++) {
    Vector4 dh = k.d_output(k.s, b), later[D];
    const bool is_read = k.lane < D && k.s + own_delay >= 0 && k.s + own_delay < args.T;
    const float a = is_read ? *saved_a(k, k.s + own_delay, b) : 0;
    EACH_DELAY {
      const int t = k.s + delay(d);
      later[d] = t >= 0 && t < args.T ? load_from(delay(d), dm_of(k, t, b)) : Vector4{{0, 0, 0, 0}};
    }
    if (k.s >= -1 && k.s + 1 < args.T) {
      const Vector4 sent = load(k.z(b) + k.unit);
      EACH_UNIT dh.v[i] += sent.v[i];
    }
    EACH_DELAY {
      const float share = shuffle(a, d);
      EACH_UNIT dh.v[i] += share * later[d].v[i];                                       // (3')
    }
    if (k.s < 0) {
      store(args.d_initial_h + k.state_row(M * args.B * H, M + k.s, b), dh);
      continue;
    }
    const Vector4 h = load_streamed(k.state(k.s, b));
    EACH_UNIT dh.v[i] *= 1 - h.v[i] * h.v[i];                                           // (4')
    k.publish(0, H, k.unit, b, dh);
    gradient.write<kRowH % 4 == 0>(k, b, dh);
  }
  if (k.s >= 0) gradient.finish(k);
}

// Sums over the 32 lanes, of several numbers at once: lane n gets the n-th, and so on from the start.
template <int N> DEVICE float to_owners(float (&part)[N], int lane) {
#pragma unroll
  for (int width = N / 2; width > 0; width /= 2)  // halve the numbers that a lane has, and the lanes that have them
#pragma unroll
    for (int n = 0; n < width; n++) {
      const bool upper = lane & width;
      const float given = upper ? part[n] : part[n + width], kept = upper ? part[n + width] : part[n];
      part[n] = kept + shuffle_xor(given, width);
    }
#pragma unroll
  for (int distance = N; distance < 32; distance *= 2) part[0] += shuffle_xor(part[0], distance);
  return part[0];
}

// From the gradient of the mixed history to those of the gate and the softmax.
POINTWISE pointwise_1(const GRID_CONSTANT StepArguments given) {
  constexpr int kSlots = D <= 8 ? 8 : 16, kWarps = kThreads / 32;
  const Step k(given);
  const Arguments& args = k.args;
  GateGradient gradient(k, kRowR);
  float* totals = (float*)shared_memory();  // [2, warps, slots]: of this sequence and of the last
  float sum_a = 0, sum_ax = 0;
  for (int b = k.first(), which = 0; b < k.end(); b++, which ^= kWarps * kSlots) {
    Vector4 history[D], m = {{0, 0, 0, 0}}, dm, dq = load(k.z(b) + k.unit), r = load_streamed(saved_r(k, k.s, b));
    EACH_DELAY history[d] = load_from(delay(d), k.state(k.s - delay(d), b));
    const float a = k.lane < D ? *saved_a(k, k.s, b) : 0;
    EACH_UNIT dm.v[i] = dq.v[i] * r.v[i];
    float da[kSlots];
#pragma unroll
    for (int d = 0; d < kSlots; d++) da[d] = 0;
    EACH_DELAY {
      const float share = shuffle(a, d);
      EACH_UNIT m.v[i] += share * history[d].v[i], da[d] += dm.v[i] * history[d].v[i];  // (3) again, (3')
    }
    const float of_warp = to_owners(da, k.lane);
    if (k.lane < kSlots) totals[which + k.unit / 128 * kSlots + k.lane] = of_warp;
    store(dm_of(k, k.s, b), dm);
    EACH_UNIT {
      m.v[i] *= r.v[i];
      dq.v[i] *= m.v[i] * (1 - r.v[i]);                                                 // (2')
    }
    store_streamed(args.mixed + k.row(k.s, b, MIXED_STRIDE) + k.unit, m);
    k.publish(1, kDepthOfGates, k.unit, b, dq);
    gradient.write<kRowR % 4 == 0>(k, b, dq);
    sync_block();
    if (threadIdx.x >= 32) continue;
    float own = 0;
    for (int warp = 0; warp < kWarps; warp++) own += k.lane < D ? totals[which + warp * kSlots + k.lane] : 0;
    const float mean = over_delays(a * own), dl = k.lane < D ? a * (own - mean) : 0;    // (1')
    if (k.lane < D) args.dz[k.row(k.s, b, kGradientStride) + k.lane] = dl;
    sum_a += dl;
    if (kSumsX) sum_ax += dl * k.x(b);
    Vector4 four;
    EACH_UNIT four.v[i] = shuffle(dl, k.lane * 4 % kDepthTile + i);
    if (4 * k.lane < kDepthTile) k.publish(1, kDepthOfGates, H + 4 * k.lane, b, four);
  }
  gradient.finish(k);
  if (threadIdx.x < D) {
    k.add_to_sum(0, threadIdx.x, sum_a);
    if (kSumsX) k.add_to_sum(kSumsX, threadIdx.x, sum_ax);
  }
}

template <int GEMM> DEVICE float weight_at(const Arguments& args, long e, int row, int k) {
  if (k >= H + D) return 0;
  const int at = GEMM == 0 ? kRowH + k : k < H ? kRowR + k : k - H;
  return args.weight_hh[e * args.weight_hh_trial + (long)at * H + row];
}

#endif
