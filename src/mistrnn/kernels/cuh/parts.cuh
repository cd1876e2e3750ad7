// Numbers taken apart: a float is nearly the sum of two bfloat16 numbers, and almost exactly that of three (see product.cuh).
#pragma once

#include "kernels/cuh/device.cuh"

// Eight numbers rounded to bfloat16.
DEVICE uint4 rounded(const float (&v)[8]) {
  return {rounded(v[0], v[1]), rounded(v[2], v[3]), rounded(v[4], v[5]), rounded(v[6], v[7])};
}

// The next bfloat16 part of eight numbers, which is taken away from them.
DEVICE uint4 next_part(float (&left)[8]) {
  const uint4 part = rounded(left);
  const unsigned pairs[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
  for (int n = 0; n < 4; n++)
    left[2 * n] -= as_float(pairs[n] << 16), left[2 * n + 1] -= as_float(pairs[n] & 0xffff0000u);
  return part;
}
