// Numbers taken apart: a float is nearly the sum of two bfloat16 numbers, and almost exactly that of three (see gemm.cuh).
#pragma once

#include "kernels/cuda/common/device.cuh"

// Eight numbers rounded to bfloat16.
DEVICE uint4 to_bf16(const float (&v)[8]) {
  return {to_bf16(v[0], v[1]), to_bf16(v[2], v[3]), to_bf16(v[4], v[5]), to_bf16(v[6], v[7])};
}

// The next bfloat16 part of eight numbers, which is taken away from them.
DEVICE uint4 next_split(float (&left)[8]) {
  const uint4 part = to_bf16(left);
  const unsigned pairs[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
  for (int n = 0; n < 4; n++)
    left[2 * n] -= as_float(pairs[n] << 16), left[2 * n + 1] -= as_float(pairs[n] & 0xffff0000u);
  return part;
}
