// A test of compute-sanitizer's racecheck on mbarriers in shared memory, by which our kernels pass data between warps.
//
//     nvcc -arch=sm_90 -o racecheck benchmarks/racecheck.cu
//     for n in 0 1 2 3; do compute-sanitizer --tool racecheck ./racecheck $n; done
//
// One warp writes 32 numbers and arrives; another warp waits and reads them.
//     0  one lane arrives after __syncwarp: correct, and the way of our kernels
//     1  all lanes arrive: correct
//     2  one lane arrives without an order after the other lanes: a race
//     3  another block of the cluster writes the numbers with st.async, which completes the barrier: correct
// On an H200, version 2025.3.1 reports both 0 and 2, and neither 1 nor 3: it does not follow __syncwarp. The kernels under
// racecheck therefore let all lanes arrive (ARRIVING_LANES in device.cuh).
#include <cstdio>
#include <cstdlib>

typedef unsigned long long Counter;

__device__ unsigned address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

__device__ void begin(Counter* counter, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(counter)), "r"(arrivals) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void arrive(Counter* counter) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address(counter)) : "memory");
}
__device__ void arrive_and_expect(Counter* counter, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(counter)), "r"(bytes) : "memory");
}
__device__ void wait(Counter* counter) {
  unsigned done;
  do
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(address(counter)) : "memory");
  while (!done);
}
__device__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__global__ void within_a_block(bool all_arrive, bool together, int* out) {
  __shared__ int numbers[32];
  __shared__ Counter full;
  const int lane = threadIdx.x & 31;
  if (threadIdx.x == 0) begin(&full, all_arrive ? 32 : 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    numbers[lane] = 3 * lane;
    if (together) __syncwarp();
    if (all_arrive || lane == 0) arrive(&full);
  } else {
    wait(&full);
    out[lane] = numbers[31 - lane];
  }
}

__global__ void __cluster_dims__(2) between_blocks(int* out) {
  __shared__ int numbers[32];
  __shared__ Counter full;
  const int lane = threadIdx.x & 31;
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) begin(&full, 1);
  sync_cluster();
  if (threadIdx.x < 32) {
    unsigned there, counter;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(numbers + lane)), "r"(1 - rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(address(&full)), "r"(1 - rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there), "r"(3 * lane),
                 "r"(counter) : "memory");
    if (lane == 0) arrive_and_expect(&full, sizeof(numbers));
  } else {
    wait(&full);
    out[rank * 32 + lane] = numbers[31 - lane];
  }
  sync_cluster();
}

int main(int count, char** words) {
  const int which = count > 1 ? atoi(words[1]) : 0;
  int *out, host[64] = {};
  cudaMalloc(&out, sizeof(host));
  if (which < 3) within_a_block<<<1, 64>>>(which == 1, which != 2, out);
  else between_blocks<<<2, 64>>>(out);
  const cudaError_t error = cudaMemcpy(host, out, sizeof(host), cudaMemcpyDeviceToHost);
  for (int n = 0; n < 32; n++)
    if (error != cudaSuccess || host[n] != 3 * (31 - n)) return printf("%d: wrong, %s\n", which, cudaGetErrorString(error)), 1;
  printf("%d: read what was written\n", which);
}
