// Vectors of float or double as wide as the machine's registers, and the functions that gates need.
//
// The compiler is told the instruction set from outside (see hatch_build.py): the same source becomes AVX-512, AVX2, SSE or
// NEON code. Only loads and stores of part of a vector need intrinsics.
#pragma once

#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace mistrnn::MISTRNN_ISA {

#if defined(__AVX512F__)
constexpr long kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr long kVectorBytes = 32;
#else
constexpr long kVectorBytes = 16;
#endif

template <class F> constexpr long lanes = kVectorBytes / sizeof(F);

template <class F> struct Types;
template <> struct Types<float> {
  typedef float V __attribute__((ext_vector_type(lanes<float>)));
  typedef int32_t N __attribute__((ext_vector_type(lanes<float>)));
};
template <> struct Types<double> {
  typedef double V __attribute__((ext_vector_type(lanes<double>)));
  typedef int64_t N __attribute__((ext_vector_type(lanes<double>)));
};
template <class F> using Vec = typename Types<F>::V;
template <class F> using IntVec = typename Types<F>::N;

template <class F> inline Vec<F> load(const F* p) {
  Vec<F> v;
  memcpy(&v, p, sizeof v);
  return v;
}

template <class F> inline void store(F* p, Vec<F> v) { memcpy(p, &v, sizeof v); }

// Part of a vector: the first n lanes, 0 < n < lanes; the others are zero, or are not written.
template <class F> inline Vec<F> load_part(const F* p, long n) {
  Vec<F> v = F(0);
#if defined(__AVX512F__)
  if constexpr (sizeof(F) == 4) v = (Vec<F>)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
  else v = (Vec<F>)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
#elif defined(__AVX2__)
  if constexpr (sizeof(F) == 4) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    v = (Vec<F>)_mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
  } else {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    v = (Vec<F>)_mm256_maskload_pd(p, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lane));
  }
#else
  for (long i = 0; i < n; i++) v[i] = p[i];
#endif
  return v;
}

template <class F> inline void store_part(F* p, Vec<F> v, long n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(F) == 4) _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
  else _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)v);
#else
  for (long i = 0; i < n; i++) p[i] = v[i];
#endif
}

// The elements j ... of a row of `size`, as a vector.
template <class F> inline Vec<F> load_at(const F* row, long j, long size) {
  return __builtin_expect(j + lanes<F> <= size, 1) ? load(row + j) : load_part(row + j, size - j);
}
template <class F> inline void store_at(F* row, long j, long size, Vec<F> v) {
  if (__builtin_expect(j + lanes<F> <= size, 1)) store(row + j, v);
  else store_part(row + j, v, size - j);
}

// The first n lanes; the others become zero.
template <class F, class V> inline V first_lanes(V v, long n) {
  for (long i = n; i < lanes<F>; i++) v[i] = F(0);
  return v;
}

template <class F> inline F sum(Vec<F> v) {
  F part[lanes<F>];
  store(part, v);
  for (long half = lanes<F> / 2; half > 0; half /= 2)
    for (long i = 0; i < half; i++) part[i] += part[i + half];
  return part[0];
}

// e^x = 2^n e^r with |r| <= ln(2) / 2; e^r - 1 by its Taylor series, to the last bit of the type. ln(2) is taken in two
// parts, so that n * (the first part) is exact.
template <class F> struct Exp;
template <> struct Exp<float> {
  static constexpr float lowest = -87.33f, highest = 88.37f, high_part = 0.693359375f, low_part = -2.12194440e-4f;
  static constexpr int terms = 8, mantissa = 23, bias = 127;
};
template <> struct Exp<double> {
  static constexpr double lowest = -708.39, highest = 709.43, high_part = 0.693145751953125,
                          low_part = 1.42860682030941723212e-6;
  static constexpr int terms = 14, mantissa = 52, bias = 1023;
};

consteval double inverse_factorial(int n) { return n <= 1 ? 1.0 : inverse_factorial(n - 1) / n; }

template <class F, int K> inline Vec<F> taylor(Vec<F> r) {  // 1/K! + r/(K+1)! + ... up to Exp<F>::terms
  if constexpr (K == Exp<F>::terms) {
    return F(inverse_factorial(K));
  } else {
    return taylor<F, K + 1>(r) * r + F(inverse_factorial(K));
  }
}

template <class F> struct Split {
  Vec<F> power, rest;  // e^x = power * (1 + rest)
};

template <class F> inline Split<F> split_exp(Vec<F> x) {
  using C = Exp<F>;
  const Vec<F> low = C::lowest, high = C::highest;
  x = x < low ? low : x;  // comparisons with NaN are false: NaN goes through
  x = x > high ? high : x;
  const Vec<F> n = __builtin_elementwise_roundeven(x * F(1.44269504088896340736));
  Vec<F> r = x - n * C::high_part;
  r = r - n * C::low_part;
  const IntVec<F> bits = (__builtin_convertvector(n, IntVec<F>) + C::bias) << C::mantissa;
  Vec<F> power;
  memcpy(&power, &bits, sizeof power);
  return {power, (taylor<F, 2>(r) * r) * r + r};
}

template <class F> inline Vec<F> exp(Vec<F> x) {
  const Split<F> s = split_exp<F>(x);
  const Vec<F> zero = F(0), low = Exp<F>::lowest, y = s.power * s.rest + s.power;
  return x < low ? zero : y;
}

template <class F> inline Vec<F> sigmoid(Vec<F> x) { return F(1) / (F(1) + exp<F>(-x)); }

template <class F> inline Vec<F> tanh(Vec<F> x) {
  // With e = e^-2|x|: (1 - e) / (1 + e) from 1 - e itself, which is exact for small x, and 1 - 2e / (1 + e) near 1, where
  // the derivative 1 - tanh(x)^2 lives on the last bits.
  const Split<F> s = split_exp<F>(F(-2) * __builtin_elementwise_abs(x));
  const Vec<F> one = F(1), minus = s.power * s.rest + (s.power - one), e = s.power * s.rest + s.power;
  const auto near_one = e < F(0.25);
  const Vec<F> part = (near_one ? F(2) * e : -minus) / (one + e);
  return __builtin_elementwise_copysign(near_one ? one - part : part, x);
}

}  // namespace mistrnn::MISTRNN_ISA
