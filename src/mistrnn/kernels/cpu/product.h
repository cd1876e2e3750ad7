// Matrix products of a few rows with a weight matrix that stays in the cache.
//
//   C[i][j] (+)= sum over k of A(i, k) B[k][j],   A(i, k) = a[i * row_stride + k * k_stride]
//
// B lies in panels of kPanel vectors, each [K][kPanel * lanes]: a tile of C stays in registers while k runs.
#pragma once

#include "kernels/cpu/simd.h"

namespace mistrnn::MISTRNN_ISA {

constexpr long kPanel = 3;  // vectors
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr long kTileRows = 8;  // 24 of 32 registers hold the tile
#else
constexpr long kTileRows = 4;  // 12 of 16
#endif

template <class F> constexpr long panel_width = kPanel * lanes<F>;

inline long round_up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }
template <class F> inline long panels_of(long columns) { return (columns + panel_width<F> - 1) / panel_width<F>; }

template <class F, int Rows, int Vectors>
static inline void tile(const F* a, long row_stride, long k_stride, const F* b, long b_stride, long k_count, F* c,
                        long c_stride, bool add) {
  Vec<F> acc[Rows][Vectors];
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Vectors; j++) acc[i][j] = F(0);
  for (long k = 0; k < k_count; k++) {
    Vec<F> row[Vectors];
    for (int j = 0; j < Vectors; j++) row[j] = load(b + k * b_stride + j * lanes<F>);
    for (int i = 0; i < Rows; i++) {
      const Vec<F> scalar = a[i * row_stride + k * k_stride];
      for (int j = 0; j < Vectors; j++) acc[i][j] += scalar * row[j];
    }
  }
  // What was there is added last: a sum of sums rounds less than one long sum.
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Vectors; j++) {
      F* to = c + i * c_stride + j * lanes<F>;
      store(to, add ? load(to) + acc[i][j] : acc[i][j]);
    }
}

template <class F, int Rows, int Vectors>
static void tile_in_sums(const F* a, long row_stride, long k_stride, const F* b, long b_stride, long k_count, F* c,
                         long c_stride, bool add) {
  constexpr long kSum = 256;  // numbers that are added up in a row; there is always at least one
  for (long k = 0; k < k_count; k += kSum, add = true)
    tile<F, Rows, Vectors>(a + k * k_stride, row_stride, k_stride, b + k * b_stride, b_stride,
                           k_count - k < kSum ? k_count - k : kSum, c, c_stride, add);
}

template <class F, int Vectors>
static void tile_rows(long rows, const F* a, long row_stride, long k_stride, const F* b, long b_stride, long k_count, F* c,
                      long c_stride, bool add) {
  switch (rows) {
#define MISTRNN_ROWS(n) \
  case n: return tile_in_sums<F, n, Vectors>(a, row_stride, k_stride, b, b_stride, k_count, c, c_stride, add);
    MISTRNN_ROWS(1) MISTRNN_ROWS(2) MISTRNN_ROWS(3) MISTRNN_ROWS(4)
#if defined(__AVX512F__) || defined(__aarch64__)
    MISTRNN_ROWS(5) MISTRNN_ROWS(6) MISTRNN_ROWS(7) MISTRNN_ROWS(8)
#endif
#undef MISTRNN_ROWS
  }
}

// `columns` is rounded up to whole vectors: the rows of C have room for them.
template <class F>
static void multiply(long rows, const F* a, long row_stride, long k_stride, const F* b, long b_stride, long panel_stride,
                     long k_count, long columns, F* c, long c_stride, bool add) {
  if (columns <= 0 || rows <= 0) return;
  long vectors = (columns + lanes<F> - 1) / lanes<F>;
  const long tiles = (rows + kTileRows - 1) / kTileRows;
  for (; vectors > 0; vectors -= kPanel, b += panel_stride, c += panel_width<F>) {
    for (long t = 0, i = 0; t < tiles; t++) {
      const long here = (rows - i + tiles - t - 1) / (tiles - t);  // tiles of nearly equal height
      const F* a_i = a + i * row_stride;
      F* c_i = c + i * c_stride;
      if (vectors >= 3) tile_rows<F, 3>(here, a_i, row_stride, k_stride, b, b_stride, k_count, c_i, c_stride, add);
      else if (vectors == 2) tile_rows<F, 2>(here, a_i, row_stride, k_stride, b, b_stride, k_count, c_i, c_stride, add);
      else tile_rows<F, 1>(here, a_i, row_stride, k_stride, b, b_stride, k_count, c_i, c_stride, add);
      i += here;
    }
  }
}

// The room that B takes in panels.
template <class F> inline long packed_size(long k_count, long columns) {
  return panels_of<F>(columns) * panel_width<F> * k_count;
}

}  // namespace mistrnn::MISTRNN_ISA
