// A ring of stages in shared memory, between warps that fill it and warps that use what is there. Neither waits for the other
// but by counters, two for each stage: it is full, it is empty.
#pragma once

#include "kernels/cuda/common/device.cuh"

// Where a warp is in the ring.
struct PipelineState {
  int stage = 0, parity = 0;
  METHOD void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};
