// Runs the GPU kernels on a CPU: every thread of a cluster is a coroutine, and barriers are where they take turns. It stands
// in for kernels/cuda/common/device.cuh and is as exact about who may see what as barriers are: a missing one shows.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define DEVICE static inline
#define METHOD inline
#define KERNEL(threads) static void
#define KERNEL_OCCUPANCY(threads, blocks) static void
#define GRID_CONSTANT

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct Index { unsigned x, y, z; };

static inline float fast_exp2(float x) { return exp2f(x); }
static inline float fast_reciprocal(float x) { return 1 / x; }

namespace emulator {

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  Index place;
  int block, warp, lane;
  bool done = false;
};
struct Barrier { int arrived = 0, generation = 0, any = 0, result = 0; };

inline std::vector<Thread> threads;
inline Thread* now;
inline ucontext_t home;
inline std::vector<Barrier> blocks, warps;
inline Barrier cluster;
inline std::vector<char*> memories;
inline std::vector<char> exchange;  // 64 bytes for each thread
inline int threads_of_block, warps_of_block;
inline Index grid_place, grid_size;
inline void (*body)();

inline void wait(Barrier& barrier, int count, int mine = 0) {
  const int generation = barrier.generation;
  barrier.any |= mine;
  if (++barrier.arrived == count) {
    barrier.arrived = 0, barrier.result = barrier.any, barrier.any = 0, barrier.generation++;
    return;
  }
  while (barrier.generation == generation) swapcontext(&now->context, &home);
}
inline Barrier& own_warp() { return warps[now->block * warps_of_block + now->warp]; }
inline char* slot(int lane) { return exchange.data() + ((now->block * warps_of_block + now->warp) * 32 + lane) * 64; }
inline void start() {
  body();
  now->done = true;
  swapcontext(&now->context, &home);
}

// Run one cluster to its end.
inline void run(void (*kernel)(), int clusters_of_block, int count, long shared, Index first) {
  body = kernel, threads_of_block = count, warps_of_block = count / 32;
  threads.clear(), threads.resize((size_t)clusters_of_block * count);
  blocks.assign(clusters_of_block, {}), warps.assign(clusters_of_block * warps_of_block, {}), cluster = {};
  exchange.assign((size_t)clusters_of_block * count * 64, 0);
  for (char* memory : memories) free(memory);
  memories.clear();
  for (int n = 0; n < clusters_of_block; n++) {
    memories.push_back((char*)aligned_alloc(1024, (shared / 1024 + 1) * 1024));
    memset(memories.back(), 0xff, shared);  // poison: NaN
  }
  grid_place = first;
  for (size_t n = 0; n < threads.size(); n++) {
    Thread& t = threads[n];
    t.block = (int)n / count, t.place = {(unsigned)(n % count), 0, 0};
    t.warp = t.place.x / 32, t.lane = t.place.x % 32;
    t.stack.resize(1 << 16);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data(), t.context.uc_stack.ss_size = t.stack.size(), t.context.uc_link = &home;
    makecontext(&t.context, start, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (Thread& t : threads) {
      if (t.done) continue;
      any = true, now = &t;
      swapcontext(&home, &t.context);
    }
  }
}

}  // namespace emulator

#define gridDim (emulator::grid_size)
#define threadIdx (emulator::now->place)
#define blockIdx (Index{emulator::grid_place.x + (unsigned)emulator::now->block, emulator::grid_place.y, emulator::grid_place.z})

template <class V> DEVICE void make_opaque(V&) {}
DEVICE char* shared_memory() { return emulator::memories[emulator::now->block]; }
DEVICE void sync_block() { emulator::wait(emulator::blocks[emulator::now->block], emulator::threads_of_block); }
DEVICE bool any_in_block(bool mine) {
  emulator::Barrier& barrier = emulator::blocks[emulator::now->block];
  emulator::wait(barrier, emulator::threads_of_block, mine);
  return barrier.result;
}
DEVICE void sync_warp() { emulator::wait(emulator::own_warp(), 32); }
DEVICE void sync_cluster() { emulator::wait(emulator::cluster, (int)emulator::threads.size()); }
DEVICE int cluster_rank() { return emulator::now->block; }
template <class V> DEVICE V shuffle(V value, int lane) {
  memcpy(emulator::slot(emulator::now->lane), &value, sizeof(V));
  sync_warp();
  V other;
  memcpy(&other, emulator::slot(lane), sizeof(V));
  sync_warp();
  return other;
}
template <class V> DEVICE V shuffle_xor(V value, int distance) { return shuffle(value, emulator::now->lane ^ distance); }
struct Mbarrier {
  short arrivals, missing;
  int bytes : 31;
  unsigned parity : 1;
  void check() {
    if (missing == 0 && bytes == 0) missing = arrivals, parity ^= 1;
  }
};
static_assert(sizeof(Mbarrier) == 8, "as on the machine");
DEVICE void mbarrier_init(Mbarrier* mbarrier, int warps) { *mbarrier = {(short)warps, (short)warps, 0, 0}; }
DEVICE void warp_arrive(int lane, Mbarrier* mbarrier, int bytes = 0) {
  sync_warp();
  if (lane != 0) return;
  if (mbarrier->missing == 0) abort();
  mbarrier->missing--, mbarrier->bytes += bytes;
  mbarrier->check();
}
DEVICE void mbarrier_wait(Mbarrier* mbarrier, int parity) {
  while ((int)mbarrier->parity == parity) swapcontext(&emulator::now->context, &emulator::home);
}
template <class V> DEVICE V* map_shared(V* pointer, int rank) { return (V*)(emulator::memories[rank] + ((char*)pointer - shared_memory())); }
template <class V> DEVICE void store_async(void* pointer, int rank, V value, Mbarrier* mbarrier) {
  memcpy(map_shared((char*)pointer, rank), &value, sizeof(V));
  map_shared(mbarrier, rank)->bytes -= sizeof(V);
  map_shared(mbarrier, rank)->check();
}
DEVICE float as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
DEVICE unsigned as_bits(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
DEVICE unsigned to_bf16_bits(float value) {
  const unsigned bits = as_bits(value);
  if (value != value) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEVICE unsigned to_bf16(float low, float high) { return to_bf16_bits(low) | to_bf16_bits(high) << 16; }

// As the instruction m16n8k16 lays its operands out over the lanes of a warp.
DEVICE void mma(float (&sum)[4], uint4 a, uint2 b) {
  const unsigned mine[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
  memcpy(emulator::slot(emulator::now->lane), mine, sizeof mine);
  sync_warp();
  auto part = [](int lane, int reg, int half) {
    unsigned bits;
    memcpy(&bits, emulator::slot(lane) + 4 * reg, 4);
    return as_float(half ? bits & 0xffff0000u : bits << 16);
  };
  const int lane = emulator::now->lane;
  for (int r = 0; r < 4; r++) {
    const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
    float total = sum[r];
    for (int k = 0; k < 16; k++)
      total += part(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) * part(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
    sum[r] = total;
  }
  sync_warp();
}
DEVICE void load_below(float& value, const float* pointer, int index, int count) {
  if (index < count) value = *pointer;
}
DEVICE void store_below(float* pointer, float value, int index, int count) {
  if (index < count) *pointer = value;
}
DEVICE void prefetch(const void*) {}
// A copy comes as late as it may: when its group is waited for.
namespace emulator {
struct Copy { void* to; const void* from; };
inline std::vector<std::vector<std::vector<Copy>>> copies;  // of every thread, by group; the last is not ended yet
}  // namespace emulator
DEVICE std::vector<std::vector<emulator::Copy>>& own_copies() {
  auto& all = emulator::copies;
  if (all.size() != emulator::threads.size()) all.assign(emulator::threads.size(), {});
  auto& own = all[emulator::now - emulator::threads.data()];
  if (own.empty()) own.emplace_back();
  return own;
}
DEVICE void cp_async(void* shared, const void* global) {
  if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) abort();
  own_copies().back().push_back({shared, global});
}
DEVICE void cp_async_commit() { own_copies().emplace_back(); }
template <int LEFT> DEVICE void cp_async_wait() {
  auto& own = own_copies();
  while ((int)own.size() - 1 > LEFT) {
    for (const auto& copy : own.front()) memcpy(copy.to, copy.from, 16);
    own.erase(own.begin());
  }
}
DEVICE void cp_async_bulk(void* shared, const void* global, int bytes, Mbarrier* mbarrier) {
  if ((uintptr_t)shared % 16 || (uintptr_t)global % 16 || bytes % 16) abort();
  memcpy(shared, global, bytes);
  mbarrier->bytes -= bytes;
  mbarrier->check();
}
DEVICE void cp_async_bulk_evict_first(void* shared, const void* global, int bytes, Mbarrier* mbarrier) {
  cp_async_bulk(shared, global, bytes, mbarrier);
}
// Products of four warps together read their operands, and leave their sums, as late as they may: when they are waited for.
namespace emulator {
struct Product { float* sum; int tiles; const char *a, *b; };
inline std::vector<std::vector<std::vector<Product>>> products;  // of every thread, by group; the last is not ended yet
}  // namespace emulator
DEVICE std::vector<std::vector<emulator::Product>>& own_products() {
  auto& all = emulator::products;
  if (all.size() != emulator::threads.size()) all.assign(emulator::threads.size(), {});
  auto& own = all[emulator::now - emulator::threads.data()];
  if (own.empty()) own.emplace_back();
  return own;
}
// A number of a row of 64 bytes: the machine swaps bits of the address.
DEVICE float in_row(const char* rows, int row, int k) {
  uintptr_t address = (uintptr_t)rows + row * 64 + k * 2;
  address ^= (address >> 7 & 3) << 4;
  return as_float((unsigned)*(const unsigned short*)address << 16);
}
template <int NT> DEVICE void wgmma(float (&sum)[NT][4], const char* a, const char* b) {
  own_products().back().push_back({sum[0], NT, a, b});
}
DEVICE void wgmma_fence() {}
DEVICE void wgmma_commit() { own_products().emplace_back(); }
template <int LEFT> DEVICE void wgmma_wait() {
  auto& own = own_products();
  while ((int)own.size() - 1 > LEFT) {
    for (const auto& product : own.front())
      for (int n = 0; n < 4 * product.tiles; n++) {
        const int lane = emulator::now->lane, row = emulator::now->warp % 4 * 16 + lane / 4 + n % 4 / 2 * 8;
        const int column = n / 4 * 8 + lane % 4 * 2 + n % 2;
        for (int k = 0; k < 16; k++) product.sum[n] += in_row(product.a, row, k) * in_row(product.b, column, k);
      }
    own.erase(own.begin());
  }
}
// What a thread writes for them, they see as late as they may: when the thread shows it to them.
namespace emulator {
struct Written { char* to; uint4 value; };
inline std::vector<std::vector<Written>> written;  // of every thread, and not shown yet
}  // namespace emulator
DEVICE std::vector<emulator::Written>& own_written() {
  auto& all = emulator::written;
  if (all.size() != emulator::threads.size()) all.assign(emulator::threads.size(), {});
  return all[emulator::now - emulator::threads.data()];
}
DEVICE void store_for_wgmma(char* shared, uint4 v) {
  if ((uintptr_t)shared % 16) abort();
  own_written().push_back({shared, v});
}
DEVICE void fence_proxy_async() {
  for (const auto& one : own_written()) memcpy(one.to, &one.value, 16);
  own_written().clear();
}
template <int KEPT> DEVICE void setmaxnreg_dec() {}
template <int TAKEN> DEVICE void setmaxnreg_inc() {}
template <class V> DEVICE void store_streaming(V* pointer, V value) { *pointer = value; }
template <class V> DEVICE V load_streaming(const V* pointer) { return *pointer; }
DEVICE uint4 load_weights(const uint4* pointer) { return *pointer; }
