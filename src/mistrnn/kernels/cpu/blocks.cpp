// The kernels of kernels/cpu/blocks.h for one instruction set; MISTRNN_ISA names it.
//
// All of them are bound by memory: each pass reads a piece of time that fits the second-level cache, and sums over frames
// are taken in double: in float they would lose digits with the number of frames.
#include "kernels/cpu/blocks.h"

#include <stdlib.h>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/team.h"

namespace mistrnn::MISTRNN_ISA {
namespace {

constexpr long kPieceBytes = 64 * 1024;  // of one tensor
enum Status : int64_t { kDone = 0, kOutOfMemory = 1 };

// Consecutive steps of one trial.
struct Piece {
  long e, first, end;
};

// The steps of all trials in pieces, and the threads that work on them.
template <class F> class Pieces {
 public:
  explicit Pieces(const BlockSizes& sizes) : sizes_(sizes) {
    const long step_bytes = sizes.B * sizes.C * (long)sizeof(F);
    steps_ = step_bytes > 0 ? kPieceBytes / step_bytes : sizes.T;
    if (steps_ < 1) steps_ = 1;
    per_trial_ = (sizes.T + steps_ - 1) / steps_;
  }
  long per_trial() const { return per_trial_; }
  long count() const { return sizes_.E * per_trial_; }

  template <class Work> void for_each(Work work) const {  // work(piece, its number)
    const long count = this->count(), size = sizes_.threads < count ? sizes_.threads : count;
    if (count == 0) return;
    auto share = [&](long k, long) {
      for (; k < count; k += size) {
        const long e = k / per_trial_, first = k % per_trial_ * steps_;
        work(Piece{e, first, first + steps_ < sizes_.T ? first + steps_ : (long)sizes_.T}, k);
      }
    };
    Team<BlockSizes, decltype(share)>(sizes_, size, share).run();
  }

 private:
  const BlockSizes& sizes_;
  long steps_, per_trial_;
};

// Memory that lives as long as the call.
template <class T> struct Buffer {
  T* data;
  explicit Buffer(long n) : data((T*)calloc(n > 0 ? n : 1, sizeof(T))) {}
  ~Buffer() { free(data); }
  Buffer(const Buffer&) = delete;
};

// The elements of a vector in double, and their sums. Rows of sums are padded to whole vectors.
template <class F> struct Wide {
  typedef double V __attribute__((ext_vector_type(lanes<F>)));
};
template <class F> using WideVec = typename Wide<F>::V;
template <class F> inline WideVec<F> widen(Vec<F> v) { return __builtin_convertvector(v, WideVec<F>); }
template <class F> inline void add_to(double* row, long c, WideVec<F> v) {
  WideVec<F> sum;
  memcpy(&sum, row + c, sizeof sum);
  sum += v;
  memcpy(row + c, &sum, sizeof sum);
}
template <class F> inline long padded(long channels) { return (channels + lanes<F> - 1) / lanes<F> * lanes<F>; }

template <class F> inline Vec<F> silu(Vec<F> z) { return z * sigmoid<F>(z); }
template <class F> inline Vec<F> silu_derivative(Vec<F> z) {
  const Vec<F> s = sigmoid<F>(z);
  return s * (F(1) + z * (F(1) - s));
}

// Depthwise convolution.

template <class F> class Conv {
 public:
  explicit Conv(const DepthwiseConv& call)
      : call_(call), pieces_(call.sizes), B(call.sizes.B), C(call.sizes.C), T(call.sizes.T), K(call.K) {}

  Status forward() {
    pieces_.for_each([&](Piece piece, long) {
      for (long t = piece.first; t < piece.end; t++) {
        F* y = step((F*)call_.y, piece.e, t);
        correlate(step((const F*)call_.x, piece.e, 0), y, piece.e, t, (const F*)call_.bias);
        for (long i = 0; i < B * C; i += lanes<F>) store_at(y, i, B * C, silu<F>(load_at(y, i, B * C)));
      }
    });
    return kDone;
  }

  Status backward() {
    const long row = padded<F>(C), width = (K + 1) * row;  // the taps and the bias
    Buffer<double> sums(pieces_.count() * width);
    if (!sums.data) return kOutOfMemory;
    F* d_z = (F*)call_.workspace;
    pieces_.for_each([&](Piece piece, long) {  // the gradient of the pre-activation, which is computed again
      for (long t = piece.first; t < piece.end; t++) {
        F* to = step(d_z, piece.e, t);
        const F* d_y = step((const F*)call_.d_y, piece.e, t);
        correlate(step((const F*)call_.x, piece.e, 0), to, piece.e, t, (const F*)call_.bias);
        for (long i = 0; i < B * C; i += lanes<F>)
          store_at(to, i, B * C, load_at(d_y, i, B * C) * silu_derivative<F>(load_at(to, i, B * C)));
      }
    });
    pieces_.for_each([&](Piece piece, long number) {
      double* sum = sums.data + number * width;
      for (long t = piece.first; t < piece.end; t++) {
        if (call_.d_x) convolve_back(step(d_z, piece.e, 0), step((F*)call_.d_x, piece.e, t), piece.e, t);
        if (call_.d_weight) add_weight_gradients(d_z, piece.e, t, sum);
      }
    });
    if (!call_.d_weight) return kDone;
    for (long e = 0; e < call_.sizes.E; e++)
      for (long k = 0; k <= K; k++)
        for (long c = 0; c < C; c++) {
          const double* sum = sums.data + e * pieces_.per_trial() * width + k * row + c;
          double total = 0;
          for (long p = 0; p < pieces_.per_trial(); p++) total += sum[p * width];
          if (k < K) ((F*)call_.d_weight)[(e * K + k) * C + c] = (F)total;
          else ((F*)call_.d_bias)[e * C + c] = (F)total;
        }
    return kDone;
  }

 private:
  static constexpr long kTaps = 8;       // taken together
  static constexpr long kSequences = 16;  // summed in F

  template <class P> P* step(P* p, long e, long t) const { return p + (e * T + t) * B * C; }
  const F* tap(long e, long k) const { return (const F*)call_.weight + (e * K + k) * C; }

  // to = bias + sum over k of weight_k * x_{t+ahead-k}
  void correlate(const F* x, F* to, long e, long t, const F* bias) const {
    for (long b = 0; b < B; b++) memcpy(to + b * C, bias + e * C, sizeof(F) * C);
    const long newest = t + call_.ahead, first = newest < T ? 0 : newest - T + 1;
    const long last = newest + 1 < K ? newest + 1 : K;  // taps first ... last - 1 read existing steps
    for (long k = first; k < last; k += kTaps)
      add_taps(x + (newest - k) * B * C, -B * C, tap(e, k), last - k < kTaps ? last - k : kTaps, to);
  }

  // to = sum over k of weight_k * d_z_{t-ahead+k}
  void convolve_back(const F* d_z, F* to, long e, long t) const {
    memset(to, 0, sizeof(F) * B * C);
    const long oldest = t - call_.ahead, first = oldest >= 0 ? 0 : -oldest;
    const long last = T - oldest < K ? T - oldest : K;
    for (long k = first; k < last; k += kTaps)
      add_taps(d_z + (oldest + k) * B * C, B * C, tap(e, k), last - k < kTaps ? last - k : kTaps, to);
  }

  // to[b] += sum over the taps i of weight[i] * from[i * stride][b]
  void add_taps(const F* from, long stride, const F* weight, long count, F* to) const {
    switch (count) {
#define MISTRNN_TAPS(n) \
  case n: return add_taps<n>(from, stride, weight, to);
      MISTRNN_TAPS(1) MISTRNN_TAPS(2) MISTRNN_TAPS(3) MISTRNN_TAPS(4)
      MISTRNN_TAPS(5) MISTRNN_TAPS(6) MISTRNN_TAPS(7) MISTRNN_TAPS(8)
#undef MISTRNN_TAPS
    }
  }
  template <int Count> void add_taps(const F* from, long stride, const F* weight, F* to) const {
    for (long c = 0; c < C; c += lanes<F>) {
      Vec<F> w[Count];
      for (int i = 0; i < Count; i++) w[i] = load_at(weight + i * C, c, C);
      for (long b = 0; b < B; b++) {
        Vec<F> sum = load_at(to + b * C, c, C);
        for (int i = 0; i < Count; i++) sum += w[i] * load_at(from + i * stride + b * C, c, C);
        store_at(to + b * C, c, C, sum);
      }
    }
  }

  void add_weight_gradients(const F* d_z, long e, long t, double* sum) const {
    const F *own = step(d_z, e, t), *x = step((const F*)call_.x, e, 0);
    const long row = padded<F>(C);
    const long newest = t + call_.ahead, first = newest < T ? 0 : newest - T + 1;
    const long last = newest + 1 < K ? newest + 1 : K;
    for (long begin = 0; begin < B; begin += kSequences) {
      const long end = begin + kSequences < B ? begin + kSequences : B;
      for (long c = 0; c < C; c += lanes<F>) {
        Vec<F> bias = F(0);
        for (long b = begin; b < end; b++) bias += load_at(own + b * C, c, C);
        add_to<F>(sum + K * row, c, widen<F>(bias));
      }
      for (long k = first; k < last; k += kTaps) {
        const long count = last - k < kTaps ? last - k : kTaps;
        const F* newest_x = x + (newest - k) * B * C;
        for (long c = 0; c < C; c += lanes<F>) {
          Vec<F> taps[kTaps];
          for (long i = 0; i < kTaps; i++) taps[i] = F(0);
          for (long b = begin; b < end; b++) {
            const Vec<F> d = load_at(own + b * C, c, C);
            const F* from = newest_x + b * C;
            if (count == kTaps) {
              for (long i = 0; i < kTaps; i++) taps[i] += d * load_at(from - i * B * C, c, C);
            } else {
              for (long i = 0; i < count; i++) taps[i] += d * load_at(from - i * B * C, c, C);
            }
          }
          for (long i = 0; i < count; i++) add_to<F>(sum + (k + i) * row, c, widen<F>(taps[i]));
        }
      }
    }
  }

  const DepthwiseConv& call_;
  Pieces<F> pieces_;
  const long B, C, T, K;
};

// Batch normalisation.

template <class F> class Norm {
 public:
  explicit Norm(const BatchNorm& call)
      : call_(call), pieces_(call.sizes), B(call.sizes.B), C(call.sizes.C), T(call.sizes.T), E(call.sizes.E) {}

  Status forward() {
    // Mean and sum of squared deviations of each piece, combined as by Chan et al.
    const long row = padded<F>(C);
    Buffer<double> parts(pieces_.count() * 2 * row);
    Buffer<long> counts(pieces_.count());
    if (!parts.data || !counts.data) return kOutOfMemory;
    pieces_.for_each([&](Piece piece, long number) {
      double *means = parts.data + number * 2 * row, *squares = means + row;
      const long count = counts.data[number] = frames(piece, [](long) {});
      if (count == 0) return;
      for (long c = 0; c < C; c += lanes<F>) {
        WideVec<F> sum = 0.0, squared = 0.0;
        frames(piece, [&](long frame) { sum += widen<F>(load_at(load_frame(call_.x, frame), c, C)); });
        const WideVec<F> mean = sum / (double)count;
        frames(piece, [&](long frame) {
          const WideVec<F> d = widen<F>(load_at(load_frame(call_.x, frame), c, C)) - mean;
          squared += d * d;
        });
        add_to<F>(means, c, mean), add_to<F>(squares, c, squared);
      }
    });
    for (long e = 0; e < E; e++)
      for (long c = 0; c < C; c++) {
        double mean = 0, squares = 0, count = 0;
        for (long p = 0; p < pieces_.per_trial(); p++) {
          const long number = e * pieces_.per_trial() + p, own = counts.data[number];
          if (own == 0) continue;
          const double d = parts.data[number * 2 * row + c] - mean, total = count + own;
          squares += parts.data[(number * 2 + 1) * row + c] + d * d * count * own / total;
          mean += d * own / total;
          count = total;
        }
        const double variance = count > 0 ? squares / count : 0;
        ((F*)call_.mean)[e * C + c] = (F)mean;
        ((F*)call_.variance)[e * C + c] = (F)variance;
        ((F*)call_.rstd)[e * C + c] = (F)(1 / __builtin_sqrt(variance + call_.epsilon));
      }
    apply();
    return kDone;
  }

  Status backward() {
    const long row = padded<F>(C);
    Buffer<double> parts(pieces_.count() * 2 * row);
    Buffer<long> counts(pieces_.count());
    Buffer<F> totals(E * 3 * C);  // the means of d_y and of d_y * xhat, and the scale of d_x
    if (!parts.data || !counts.data || !totals.data) return kOutOfMemory;
    pieces_.for_each([&](Piece piece, long number) {
      double *sums = parts.data + number * 2 * row, *dots = sums + row;
      const F *means = of((const F*)call_.mean, piece.e), *rstds = of((const F*)call_.rstd, piece.e);
      for (long c = 0; c < C; c += lanes<F>) {
        const Vec<F> mean = load_at(means, c, C), rstd = load_at(rstds, c, C);
        WideVec<F> sum = 0.0, dot = 0.0;
        counts.data[number] = frames(piece, [&](long frame) {
          const Vec<F> d = load_at(load_frame(call_.d_y, frame), c, C);
          sum += widen<F>(d);
          dot += widen<F>(d * ((load_at(load_frame(call_.x, frame), c, C) - mean) * rstd));
        });
        add_to<F>(sums, c, sum), add_to<F>(dots, c, dot);
      }
    });
    for (long e = 0; e < E; e++)
      for (long c = 0; c < C; c++) {
        double sum = 0, dots = 0, count = 0;
        for (long p = 0; p < pieces_.per_trial(); p++) {
          const long number = e * pieces_.per_trial() + p;
          sum += parts.data[number * 2 * row + c], dots += parts.data[(number * 2 + 1) * row + c];
          count += counts.data[number];
        }
        if (count == 0) count = 1;
        ((F*)call_.d_bias)[e * C + c] = (F)sum;
        ((F*)call_.d_weight)[e * C + c] = (F)dots;
        F* total = totals.data + e * 3 * C;
        total[c] = (F)(sum / count), total[C + c] = (F)(dots / count);
        total[2 * C + c] = ((const F*)call_.weight)[e * C + c] * ((const F*)call_.rstd)[e * C + c];
      }
    if (!call_.d_x) return kDone;
    pieces_.for_each([&](Piece piece, long) {
      const F *mean = of((const F*)call_.mean, piece.e), *rstd = of((const F*)call_.rstd, piece.e);
      const F* total = totals.data + piece.e * 3 * C;
      every_frame(piece, [&](long frame, bool valid) {
        F* d_x = (F*)call_.d_x + frame * C;
        if (!valid) return (void)memset(d_x, 0, sizeof(F) * C);
        const F *x = load_frame(call_.x, frame), *d_y = load_frame(call_.d_y, frame);
        for (long c = 0; c < C; c += lanes<F>) {
          const Vec<F> xhat = (load_at(x, c, C) - load_at(mean, c, C)) * load_at(rstd, c, C);
          const Vec<F> d = load_at(d_y, c, C) - load_at(total, c, C) - xhat * load_at(total + C, c, C);
          store_at(d_x, c, C, d * load_at(total + 2 * C, c, C));
        }
      });
    });
    return kDone;
  }

 private:
  void apply() const {
    pieces_.for_each([&](Piece piece, long) {
      const F *mean = of((const F*)call_.mean, piece.e), *rstd = of((const F*)call_.rstd, piece.e);
      const F *weight = of((const F*)call_.weight, piece.e), *bias = of((const F*)call_.bias, piece.e);
      every_frame(piece, [&](long frame, bool valid) {
        F* y = (F*)call_.y + frame * C;
        if (!valid) return (void)memset(y, 0, sizeof(F) * C);
        const F* x = load_frame(call_.x, frame);
        for (long c = 0; c < C; c += lanes<F>) {
          const Vec<F> xhat = (load_at(x, c, C) - load_at(mean, c, C)) * load_at(rstd, c, C);
          store_at(y, c, C, xhat * load_at(weight, c, C) + load_at(bias, c, C));
        }
      });
    });
  }

  template <class Work> void every_frame(Piece piece, Work work) const {  // work(frame, whether it is valid)
    const int64_t* lengths = call_.lengths ? call_.lengths + piece.e * B : nullptr;
    for (long t = piece.first; t < piece.end; t++)
      for (long b = 0; b < B; b++) work((piece.e * T + t) * B + b, !lengths || t < lengths[b]);
  }
  template <class Work> long frames(Piece piece, Work work) const {  // the valid ones; returns their number
    long count = 0;
    every_frame(piece, [&](long frame, bool valid) {
      if (valid) work(frame), count++;
    });
    return count;
  }
  const F* load_frame(const void* p, long frame) const { return (const F*)p + frame * C; }
  const F* of(const F* p, long e) const { return p + e * C; }

  const BatchNorm& call_;
  Pieces<F> pieces_;
  const long B, C, T, E;
};

// Gated linear unit.

template <class F> Status gated_unit(const GatedUnit& call) {
  const long B = call.sizes.B, C = call.sizes.C, T = call.sizes.T;
  Pieces<F>(call.sizes).for_each([&](Piece piece, long) {
    for (long frame = (piece.e * T + piece.first) * B, end = (piece.e * T + piece.end) * B; frame < end; frame++) {
      const F *a = (const F*)call.x + frame * 2 * C, *b = a + C;
      for (long c = 0; c < C; c += lanes<F>) {
        const Vec<F> gate = load_at(a, c, C), value = load_at(b, c, C);
        if (!call.d_y) {
          store_at((F*)call.y + frame * C, c, C, silu<F>(gate) * value);
        } else {
          const Vec<F> d = load_at((const F*)call.d_y + frame * C, c, C);
          F* d_x = (F*)call.d_x + frame * 2 * C;
          store_at(d_x, c, C, d * value * silu_derivative<F>(gate));
          store_at(d_x + C, c, C, d * silu<F>(gate));
        }
      }
    }
  });
  return kDone;
}

}  // namespace

template <class F> int64_t run(const DepthwiseConv& call) {
  return call.d_y ? Conv<F>(call).backward() : Conv<F>(call).forward();
}
template <class F> int64_t run(const BatchNorm& call) {
  return call.d_y ? Norm<F>(call).backward() : Norm<F>(call).forward();
}
template <class F> int64_t run(const GatedUnit& call) { return gated_unit<F>(call); }

int64_t depthwise_conv(const DepthwiseConv& call) { return call.sizes.is_double ? run<double>(call) : run<float>(call); }
int64_t batch_norm(const BatchNorm& call) { return call.sizes.is_double ? run<double>(call) : run<float>(call); }
int64_t glu(const GatedUnit& call) { return call.sizes.is_double ? run<double>(call) : run<float>(call); }

}  // namespace mistrnn::MISTRNN_ISA
