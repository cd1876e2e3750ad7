// The network step of kernels/cpu/network_stream.h for one instruction set; MISTRNN_ISA names it.
//
// Rows of P channels need no partial vectors. Padded channels hold no meaning and are never summed over.
#include "kernels/cpu/network_stream.h"

#include "kernels/cpu/product.h"
#include "kernels/cpu/team.h"

namespace mistrnn::MISTRNN_ISA {

void stream_step(void* stream, const void* x, void* output, long place);  // run.cpp

namespace {

template <class F> inline Vec<F> silu(Vec<F> z) { return z * sigmoid<F>(z); }

// The place after this one in a ring whose states are stored twice, `memory` apart.
inline int64_t next(int64_t place, int64_t memory) { return place + 1 == memory ? 0 : place + 1; }

template <class F> class NetworkStep {
 public:
  explicit NetworkStep(const Network& network)
      : n_(network), B(network.B), W(network.W), P(network.P), x_((F*)network.x), y_((F*)network.y) {}

  template <class In> void run(const In* input, F* scores) {
    standardise(input);
    spread(n_.embedding_bias, x_, P, P);
    product((const F*)n_.standardised, n_.C, n_.embedding_weight, n_.C, W, x_, P);
    for (long i = 0; i < n_.block_count; i++) {
      recurrent_branch(n_.blocks[i]);
      gated_branch(n_.blocks[i]);
    }
    affine(n_.scale, n_.shift);
    if (n_.pooling_count > 0) pool();
    head(scores);
  }

 private:
  static constexpr long L = lanes<F>;

  template <class In> void standardise(const In* input) {
    F* to = (F*)n_.standardised;
    for (long b = 0; b < B; b++)
      for (long c = 0; c < n_.C; c++)
        to[b * n_.C + c] = (F)(((double)input[b * n_.C + c] - n_.mean[c]) / n_.deviation[c]);
  }

  // x += projection(u + layer(u)), u = conv(norm(x))
  void recurrent_branch(NetworkBlock& block) {
    affine(block.layer_scale, block.layer_shift);
    F *input = (F*)n_.layer_input, *output = (F*)n_.layer_output;
    if (block.conv_weight) {
      convolve(block, input);
    } else {
      for (long b = 0; b < B; b++) memcpy(input + b * W, y_ + b * P, sizeof(F) * W);
    }
    stream_step(block.layer, input, output, block.place);
    for (long i = 0; i < B * W; i += L) store_at(output, i, B * W, load_at(output, i, B * W) + load_at(input, i, B * W));
    block.place = next(block.place, block.memory);
    add_row(block.projection_bias);
    product(output, block.H, block.projection_weight, block.H, W, x_, P);
  }

  // x += down(silu(gate) * value), [gate | value] = up(norm(x))
  void gated_branch(const NetworkBlock& block) {
    F* up = (F*)n_.up;
    affine(block.unit_scale, block.unit_shift);
    spread(block.up_bias, up, 2 * P, 2 * P);
    product(y_, P, block.up_weight, W, 2 * P, up, 2 * P);
    for (long b = 0; b < B; b++) {
      const F *gate = up + b * 2 * P, *value = gate + P;
      for (long c = 0; c < P; c += L) store(y_ + b * P + c, silu<F>(load(gate + c)) * load(value + c));
    }
    add_row(block.down_bias);
    product(y_, P, block.down_weight, W, W, x_, P);
  }

  // y = x * scale + shift
  void affine(const void* scale, const void* shift) {
    const F *by = (const F*)scale, *plus = (const F*)shift;
    for (long b = 0; b < B; b++)
      for (long c = 0; c < P; c += L) store(y_ + b * P + c, load(x_ + b * P + c) * load(by + c) + load(plus + c));
  }

  // to = silu(bias + sum over k of weight_k * y k steps ago)
  void convolve(NetworkBlock& block, F* to) {
    const long before = n_.K - 1, step = B * P;
    const F *weight = (const F*)block.conv_weight, *bias = (const F*)block.conv_bias;
    F* ring = (F*)block.history + block.history_place * step;  // the oldest input, which is replaced
    for (long b = 0; b < B; b++)
      for (long c = 0; c < W; c += L) {
        const F* past = ring + b * P + c;
        Vec<F> sum = load(bias + c) + load(weight + c) * load(y_ + b * P + c);
        for (long k = 1; k <= before; k++) sum += load(weight + k * P + c) * load(past + (before - k) * step);
        store_at(to + b * W, c, W, silu<F>(sum));
      }
    memcpy(ring, y_, sizeof(F) * step);
    memcpy(ring + before * step, y_, sizeof(F) * step);
    block.history_place = next(block.history_place, before);
  }

  void pool() {
    for (long b = 0; b < B; b++) {
      const int64_t count = ++n_.count[b];
      const F* frame = y_ + b * P;
      for (long p = 0; p < n_.pooling_count; p++) {
        F* to = (F*)n_.pooled + (b * n_.pooling_count + p) * W;
        for (long c = 0; c < W; c += L) {
          const Vec<F> now = load(frame + c), before = load_at(to, c, W);
          Vec<F> after = now;
          if (n_.poolings[p] == kMean) after = before + (now - before) / F(count);
          if (n_.poolings[p] == kMax && count > 1) after = now <= before ? before : now;
          if (n_.poolings[p] == kMax && count > 1) after = before == before ? after : before;  // NaN stays, as in torch
          store_at(to, c, W, after);
        }
      }
    }
  }

  void head(F* to) {
    const long S = n_.S, stride = round_up(S, L), columns = n_.pooling_count > 0 ? n_.pooling_count * W : W;
    F* scores = (F*)n_.scores;
    spread(n_.head_bias, scores, stride, S);
    if (n_.pooling_count > 0) product((const F*)n_.pooled, columns, n_.head_weight, columns, S, scores, stride);
    else product(y_, P, n_.head_weight, W, S, scores, stride);
    for (long b = 0; b < B; b++) memcpy(to + b * S, scores + b * stride, sizeof(F) * S);
  }

  // Every row of `to` becomes this one.
  void spread(const void* row, F* to, long stride, long size) {
    for (long b = 0; b < B; b++) memcpy(to + b * stride, row, sizeof(F) * size);
  }
  void add_row(const void* row) {  // x += row
    for (long b = 0; b < B; b++)
      for (long c = 0; c < P; c += L) store(x_ + b * P + c, load(x_ + b * P + c) + load((const F*)row + c));
  }
  // to += a * matrix [k_count, columns]
  void product(const F* a, long a_stride, const void* matrix, long k_count, long columns, F* to, long to_stride) {
    constexpr long kWidth = panel_width<F>;
    multiply<F>(B, a, a_stride, 1, (const F*)matrix, kWidth, kWidth * k_count, k_count, columns, to, to_stride, true);
  }

  const Network& n_;
  const long B, W, P;
  F *x_, *y_;
};

template <class F> void step(const Network& network, const void* input, bool input_is_double, void* scores) {
  NetworkStep<F> work(network);
  if (input_is_double) work.run((const double*)input, (F*)scores);
  else work.run((const float*)input, (F*)scores);
}

}  // namespace

int64_t panel_bytes() { return kPanel * kVectorBytes; }

void network_step(const Network& network, const void* input, bool input_is_double, void* scores) {
  FlushSubnormals flush;
  if (network.is_double) step<double>(network, input, input_is_double, scores);
  else step<float>(network, input, input_is_double, scores);
}

}  // namespace mistrnn::MISTRNN_ISA
