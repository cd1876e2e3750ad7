// Threads that share the work of one call.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace mistrnn::MISTRNN_ISA {

// Flush subnormals to zero in this scope. CPUs compute with subnormals many times slower, and vanishing gradients pass
// through them. The mode is per thread and is restored at the end.
class FlushSubnormals {
#if defined(__x86_64__)
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr((_mm_getcsr() & ~0x8040u) | (before_ & 0x8040u)); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
 public:
  FlushSubnormals() : before_(get()) { set(before_ | (1ull << 24)); }
  ~FlushSubnormals() { set(before_); }

 private:
  static uint64_t get() {
    uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set(uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
  uint64_t before_;
#endif
};

// A team of threads: torch's OpenMP threads if available, otherwise threads that live as long as the call. The team calls
// enter(k, threads) once for each k = 0 ... size - 1; with fewer threads than that, some calls follow others.
//
// Call has the fields `team` (GOMP_parallel or null) and `team_size` (omp_get_num_threads).
template <class Call, class Enter> class Team {
 public:
  Team(const Call& call, long size, Enter enter) : call_(call), enter_(enter), size_(size) {}

  void run() {
    if (size_ > 1 && call_.team) {
      call_.team([](void* p) { ((Team*)p)->come_in(((Team*)p)->call_.team_size()); }, this, (unsigned)size_, 0);
      return;
    }
    constexpr long kMost = 256;
    pthread_t threads[kMost];
    long started = 0;
    for (; started + 1 < size_ && started < kMost; started++)
      if (pthread_create(&threads[started], nullptr, begin, this) != 0) break;
    __atomic_store_n(&present_, started + 1, __ATOMIC_RELEASE);
    come_in(started + 1);
    while (started > 0) pthread_join(threads[--started], nullptr);
  }

 private:
  static void* begin(void* p) {
    Team* team = (Team*)p;
    long present;
    while ((present = __atomic_load_n(&team->present_, __ATOMIC_ACQUIRE)) == 0) sched_yield();
    team->come_in(present);
    return nullptr;
  }
  void come_in(long present) {
    FlushSubnormals flush;
    for (long k; (k = __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED)) < size_;) enter_(k, present);
  }

  const Call& call_;
  Enter enter_;
  const long size_;
  long next_ = 0, present_ = 0;
};

}  // namespace mistrnn::MISTRNN_ISA
