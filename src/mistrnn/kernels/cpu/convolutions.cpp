// PositiveCounts and ConvolutionStep of kernels/cpu/blocks.h for one instruction set; MISTRNN_ISA names it.
//
// A convolution is 3 * (the sum of its 3 heavy taps) - the sum of all 9 taps. The latter is shared by all 84 kernels of a
// dilation. A block of steps fits the first-level cache and is compared with all thresholds of its kernel.
#include "kernels/cpu/blocks.h"

#include <stdlib.h>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/team.h"

namespace mistrnn::MISTRNN_ISA {
namespace {

constexpr long kTaps = 9, kKernels = 84, kMostChannels = 9, kBlock = 1024;

// The numbers of the heavy taps of all kernels, in lexicographic order.
struct HeavyTaps {
  int taps[kKernels][3];
  constexpr HeavyTaps() : taps() {
    int k = 0;
    for (int a = 0; a < kTaps; a++)
      for (int b = a + 1; b < kTaps; b++)
        for (int c = b + 1; c < kTaps; c++, k++) taps[k][0] = a, taps[k][1] = b, taps[k][2] = c;
  }
};
constexpr HeavyTaps kHeavy;

// One sequence; `nine` and `y` have room for a block of each channel and of one kernel.
class Sequence {
 public:
  Sequence(const PositiveCounts& call, long b, float* nine, float* y) : call_(call), nine_(nine), y_(y) {
    x_ = call.x + b * call.x_sequence + call.memory;
    steps_ = call.lengths ? call.lengths[b] : call.sizes.T;
    hits_ = call.hits + b * call.F;
  }

  void count() {
    for (long first = 0; first < steps_; first += kBlock) {
      const long size = steps_ - first < kBlock ? steps_ - first : kBlock;
      long f = 0;
      for (long d = 0; d < call_.dilation_count; d++) {
        sum_taps(first, size, call_.dilations[d]);
        const long each = call_.thresholds_each[d];
        for (long k = 0; k < kKernels; k++, f += each) {
          convolve(first, size, call_.dilations[d], k, call_.channels + (d * kKernels + k) * (kMostChannels + 1));
          for (long s = f; s < f + each; s++) hits_[s] += above(size, call_.thresholds[s]);
        }
      }
    }
  }

 private:
  // The newest tap reads the current step.
  const float* tap(long channel, long first, long dilation, long j) const {
    return x_ + channel * call_.x_channel + first - (kTaps - 1 - j) * dilation;
  }

  void sum_taps(long first, long size, long dilation) {
    for (long c = 0; c < call_.sizes.C; c++) {
      float* sum = nine_ + c * kBlock;
      for (long t = 0; t < size; t++) sum[t] = 0;
      for (long j = 0; j < kTaps; j++) {
        const float* x = tap(c, first, dilation, j);
        for (long t = 0; t < size; t++) sum[t] += x[t];
      }
    }
  }

  void convolve(long first, long size, long dilation, long k, const int64_t* channels) {
    const int* heavy = kHeavy.taps[k];
    float* const y = y_;
    for (long i = 0; i < channels[0]; i++) {
      const long c = channels[1 + i];
      const float *p = tap(c, first, dilation, heavy[0]), *q = tap(c, first, dilation, heavy[1]),
                  *r = tap(c, first, dilation, heavy[2]), *nine = nine_ + c * kBlock;
      if (i == 0)
        for (long t = 0; t < size; t++) y[t] = 3 * (p[t] + q[t] + r[t]) - nine[t];
      else
        for (long t = 0; t < size; t++) y[t] += 3 * (p[t] + q[t] + r[t]) - nine[t];
    }
  }

  long above(long size, float threshold) const {
    int count = 0;
    for (long t = 0; t < size; t++) count += y_[t] > threshold;
    return count;
  }

  const PositiveCounts& call_;
  const float* x_;
  float *nine_, *y_;
  double* hits_;
  long steps_;
};

// One step of all sequences.
class Step {
 public:
  explicit Step(ConvolutionStep& call) : call_(call), size_(call.memory + 1) {}

  template <class Input> void run(const Input* rows, float* scores) {
    for (long b = 0; b < call_.B; b++) {
      push(rows + b * call_.C, b);
      count(b);
      read_out(b, scores + b * call_.K);
    }
    call_.place = (call_.place + 1) % size_;
  }

 private:
  template <class Input> void push(const Input* row, long b) {
    for (long c = 0; c < call_.C; c++) {
      double z = ((double)row[c] - call_.mean[c]) / call_.deviation[c];
      z = z < -call_.farthest ? -call_.farthest : z > call_.farthest ? call_.farthest : z;
      float* slot = call_.ring + (b * call_.C + c) * 2 * size_ + call_.place;
      slot[0] = slot[size_] = (float)__builtin_rint(z * call_.levels);
    }
  }

  void count(long b) {
    const float* thresholds = call_.thresholds;
    double* hits = call_.hits + b * call_.F;
    const int64_t* channels = call_.channels;
    for (long d = 0; d < call_.dilation_count; d++) {
      gather_taps(b, call_.dilations[d]);
      const long each = call_.thresholds_each[d];
      for (long k = 0; k < kKernels; k++, channels += kMostChannels + 1, hits += each, thresholds += each) {
        const int* heavy = kHeavy.taps[k];
        float y = 0;
        for (long i = 0; i < channels[0]; i++) {
          const float* taps = call_.taps + channels[1 + i] * (kTaps + 1);
          y += 3 * (taps[heavy[0]] + taps[heavy[1]] + taps[heavy[2]]) - taps[kTaps];
        }
        for (long s = 0; s < each; s++) hits[s] += y > thresholds[s];
      }
    }
  }

  // The 9 taps of each channel, the oldest first, and their sum.
  void gather_taps(long b, long dilation) {
    for (long c = 0; c < call_.C; c++) {
      const float* newest = call_.ring + (b * call_.C + c) * 2 * size_ + call_.place + size_;
      float *taps = call_.taps + c * (kTaps + 1), sum = 0;
      for (long j = 0; j < kTaps; j++) sum += taps[j] = newest[-(kTaps - 1 - j) * dilation];
      taps[kTaps] = sum;
    }
  }

  void read_out(long b, float* scores) {
    const double* hits = call_.hits + b * call_.F;
    const double share = 1.0 / (double)++call_.count[b];
    for (long f = 0; f < call_.F; f++) call_.shares[f] = (float)(hits[f] * share);
    for (long k = 0; k < call_.K; k++) scores[k] = call_.head_bias[k] + dot(call_.head_weight + k * call_.F);
  }

  float dot(const float* weight) const {
    constexpr long L = lanes<float>, kChains = 4;
    Vec<float> sums[kChains] = {};
    long f = 0;
    for (; f + kChains * L <= call_.F; f += kChains * L)
      for (long i = 0; i < kChains; i++) sums[i] += load(call_.shares + f + i * L) * load(weight + f + i * L);
    for (; f < call_.F; f += L) sums[0] += load_at(call_.shares, f, call_.F) * load_at(weight, f, call_.F);
    return sum<float>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  ConvolutionStep& call_;
  const long size_;
};

}  // namespace

void convolution_step(ConvolutionStep& call, const void* rows, bool rows_are_double, float* scores) {
  if (rows_are_double) Step(call).run((const double*)rows, scores);
  else Step(call).run((const float*)rows, scores);
}

int64_t positive_counts(const PositiveCounts& call) {
  const long room = (call.sizes.C + 1) * kBlock, size = call.sizes.threads;
  float* const workspace = (float*)malloc(sizeof(float) * room * size);
  if (!workspace) return 1;
  auto share = [&](long k, long) {
    float* const own = workspace + k * room;
    for (long b = k; b < call.sizes.B; b += size) Sequence(call, b, own, own + call.sizes.C * kBlock).count();
  };
  Team<BlockSizes, decltype(share)>(call.sizes, size, share).run();
  free(workspace);
  return 0;
}

}  // namespace mistrnn::MISTRNN_ISA
