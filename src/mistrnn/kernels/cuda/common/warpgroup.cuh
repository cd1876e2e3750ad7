// What groups of four warps multiply, on GPUs of the generation of the H100. Both operands lie in shared memory, in rows of 32
// places along the depth, that is 64 bytes, one part after the other. The quarters of a row are swapped, differently in four
// rows out of eight, so that those of eight rows can be read at once. A tile begins at a multiple of eight rows.
#pragma once

#include "kernels/cuda/common/bf16_splits.cuh"

constexpr int kRowTile = 64, kDepthTile = 32, kRowBytes = 64;  // a group has so many rows of the first operand

// Where a place lies in a tile; eight that follow each other stay together.
DEVICE int byte_of(int row, int place) { return row * kRowBytes + ((place / 8) ^ (row / 2 % 4)) * 16 + place % 8 * 2; }

// sum += a b, along the whole depth of a tile, in P parts that lie so many bytes apart. Then the group may ask for more, or
// wait: see device.cuh.
template <int NT> DEVICE void wgmma_tile(float (&sum)[NT][4], const char* a, int split_stride_a, const char* b, int split_stride_b) {
  wgmma_fence();
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int i = P - 1; i >= 0; i--)
#pragma unroll
      for (int j = P - 1 - i; j >= 0; j--)
        wgmma(sum, a + i * split_stride_a + half * kRowBytes / 2, b + j * split_stride_b + half * kRowBytes / 2);
  wgmma_commit();
}
