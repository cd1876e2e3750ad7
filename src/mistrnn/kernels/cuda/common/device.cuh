// What the kernels take from the machine: barriers, exchange within a warp and a cluster, the tensor cores. The tests put
// a header of their own in its place and run the kernels on a CPU.
#pragma once

#ifdef MISTRNN_EMULATED
#include "emulator.h"
#else

#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define KERNEL(threads) KERNEL_OCCUPANCY(threads, 1)
#define KERNEL_OCCUPANCY(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)  // on a multiprocessor
#define GRID_CONSTANT __grid_constant__
typedef unsigned char uint8_t;

DEVICE char* shared_memory() {
  extern __shared__ __align__(1024) uint4 memory[];
  return (char*)memory;
}

// Let the compiler forget where a value came from: it keeps it, instead of computing it again at every step.
DEVICE void make_opaque(int& value) { asm volatile("" : "+r"(value)); }
DEVICE void make_opaque(long& value) { asm volatile("" : "+l"(value)); }
DEVICE void make_opaque(float& value) { asm volatile("" : "+f"(value)); }
template <class V> DEVICE void make_opaque(V*& pointer) {  // to global memory
  size_t address = __cvta_generic_to_global((const void*)pointer);
  asm volatile("" : "+l"(address));
  pointer = (V*)__cvta_global_to_generic(address);
}

DEVICE void sync_block() { __syncthreads(); }
DEVICE bool any_in_block(bool mine) { return __syncthreads_or(mine); }
DEVICE void sync_warp() { __syncwarp(); }

// All threads of all blocks of the cluster have come here.
DEVICE void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

DEVICE int cluster_rank() {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return (int)rank;
}

template <class V> DEVICE V shuffle_xor(V value, int distance) { return __shfl_xor_sync(~0u, value, distance); }
template <class V> DEVICE V shuffle(V value, int lane) { return __shfl_sync(~0u, value, lane); }

// The address, in block `rank` of the cluster, of what lies at `pointer` in this one.
DEVICE unsigned map_shared(const void* pointer, int rank) {
  unsigned there = 0;
#if __CUDA_ARCH__ >= 900
  const unsigned here = (unsigned)__cvta_generic_to_shared(pointer);
#if SEQUENCES == 1  // there are registers to keep addresses in; elsewhere the weights would lose them
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
#else
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
#endif
#endif
  return there;
}

// Counts, in shared memory, arrivals of this block's warps and bytes that the other blocks of the cluster send, if it has
// any. It waits for nothing else: a barrier of the cluster would also wait for what was written to global memory.
typedef unsigned long long Mbarrier;

// Lanes that arrive for their warp. One is enough once the warp has come together; compute-sanitizer's racecheck does not see
// that what the others wrote was before that, and gets all of them (benchmarks/sanitize.py).
#ifndef ARRIVING_LANES
#define ARRIVING_LANES 1
#endif

DEVICE void mbarrier_init(Mbarrier* mbarrier, int warps) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(mbarrier)), "r"(ARRIVING_LANES * warps)
               : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DEVICE void arrive(Mbarrier* mbarrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"((unsigned)__cvta_generic_to_shared(mbarrier))
               : "memory");
}
DEVICE void mbarrier_arrive_expect_tx(Mbarrier* mbarrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(mbarrier)), "r"(bytes)
               : "memory");
#endif
}
// A warp has written all that it has, and other blocks send so many bytes, too.
DEVICE void warp_arrive(int lane, Mbarrier* mbarrier) {
  __syncwarp();
  if (ARRIVING_LANES > 1 || lane == 0) arrive(mbarrier);
}
DEVICE void warp_arrive(int lane, Mbarrier* mbarrier, int bytes) {
  __syncwarp();
  if (lane == 0) mbarrier_arrive_expect_tx(mbarrier, bytes);
  else if (ARRIVING_LANES > 1) arrive(mbarrier);
}
// Until all have arrived and sent, for the first, third ... time (parity 0) or the times between.
DEVICE void mbarrier_wait(Mbarrier* mbarrier, int parity) {
  const unsigned here = (unsigned)__cvta_generic_to_shared(mbarrier);
  unsigned done;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(here), "r"(parity) : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(here), "r"(parity) : "memory");
#endif
  } while (!done);
}
// Write to where `pointer` points in block `rank`, and let its counter know.
DEVICE void store_async(void* pointer, int rank, uint4 v, Mbarrier* mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(map_shared(pointer, rank)),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(map_shared(mbarrier, rank)) : "memory");
#endif
}
DEVICE void store_async(void* pointer, int rank, float v, Mbarrier* mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(map_shared(pointer, rank)), "f"(v),
               "r"(map_shared(mbarrier, rank)) : "memory");
#endif
}
DEVICE void store_async(void* pointer, int rank, double v, Mbarrier* mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(map_shared(pointer, rank)), "d"(v),
               "r"(map_shared(mbarrier, rank)) : "memory");
#endif
}

// sum += a b for one tile: a [16 x 16], b [16 x 8] in bfloat16, the sum [16 x 8] in float32.
DEVICE void mma(float (&sum)[4], uint4 a, uint2 b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

#ifdef WGMMA
// sum += a b for four warps together: a [64 x 16] and b [8 NT x 16] in bfloat16 lie in shared memory, in rows of 64 bytes
// whose quarters are swapped (see warpgroup.cuh), and the sum [64 x 8 NT] in the registers of the warps, 16 rows each. The product
// is under way until it has been waited for; what was asked for since the last end_products comes together.
DEVICE unsigned long long wgmma_descriptor(const char* rows) {  // eight rows take 512 bytes; quarters are swapped as in 64-byte rows
  return ((unsigned)__cvta_generic_to_shared(rows) & 0x3ffff) >> 4 | 1ull << 16 | 32ull << 32 | 2ull << 62;
}
template <int NT> DEVICE void wgmma(float (&sum)[NT][4], const char* a, const char* b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " WGMMA_SCALE_D ", 0; " WGMMA ", p, 1, 1, 0, 0; }"
               : WGMMA_ACCUMULATORS(sum) : "l"(wgmma_descriptor(a)), "l"(wgmma_descriptor(b)), "r"(1));
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// Write what such products will read. They go past the way by which threads read: each thread that wrote has to show them what
// it wrote, before it lets anybody know that it is there.
DEVICE void store_for_wgmma(char* shared, uint4 v) { *(uint4*)shared = v; }
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// All threads of a group keep so many registers and leave the others to those who ask for more, or wait until they have so many.
template <int KEPT> DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(KEPT)); }
template <int TAKEN> DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(TAKEN)); }
#endif

// Two numbers rounded to bfloat16, the first in the lower half.
DEVICE unsigned to_bf16(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// To about 2^-22 of the result.
DEVICE float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
DEVICE float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
DEVICE unsigned as_bits(float value) { return __float_as_uint(value); }

// Read a number if the index is below the count, or leave the value as it is; without a branch.
DEVICE void load_below(float& value, const float* pointer, int index, int count) {
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %2, %3; @p ld.global.f32 %0, [%1]; }"
               : "+f"(value) : "l"(__cvta_generic_to_global(pointer)), "r"(index), "r"(count));
}

// ... or write it.
DEVICE void store_below(float* pointer, float value, int index, int count) {
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %2, %3; @p st.global.f32 [%1], %0; }" ::"f"(value),
               "l"(__cvta_generic_to_global(pointer)), "r"(index), "r"(count) : "memory");
}

// Bring what will be read soon into the second-level cache.
DEVICE void prefetch(const void* pointer) { asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(pointer))); }

// Copy 16 bytes to shared memory while this thread goes on. What it has asked for since the last end_group is a group;
// wait_for_groups returns when all but the newest `LEFT` of its groups have come.
DEVICE void cp_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
               "l"(__cvta_generic_to_global(global)) : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Copy a multiple of 16 bytes to shared memory, which count themselves in when they have come.
DEVICE void cp_async_bulk(void* shared, const void* global, int bytes, Mbarrier* mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   (unsigned)__cvta_generic_to_shared(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"((unsigned)__cvta_generic_to_shared(mbarrier)) : "memory");
#endif
}

// What will not be read again soon need not stay in any cache.
template <class V> DEVICE void store_streaming(V* pointer, V value) { __stcs(pointer, value); }
template <class V> DEVICE V load_streaming(const V* pointer) { return __ldcs(pointer); }
DEVICE void cp_async_bulk_evict_first(void* shared, const void* global, int bytes, Mbarrier* mbarrier) {
#if __CUDA_ARCH__ >= 900
  unsigned long long first_to_go;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first_to_go));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   (unsigned)__cvta_generic_to_shared(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"((unsigned)__cvta_generic_to_shared(mbarrier)), "l"(first_to_go)
               : "memory");
#endif
}

// A load of weights that many blocks share: it stays in the second-level cache and out of the first.
DEVICE uint4 load_weights(const uint4* pointer) { return __ldcg(pointer); }

#endif
