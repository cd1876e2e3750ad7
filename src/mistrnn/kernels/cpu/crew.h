// Threads that take the same sequences through time together, where the weights are too many for each to read all of them:
// one member does everything about a sequence but the products, and each product is shared out among all.
#pragma once

#include <sched.h>
#include <stdint.h>

namespace mistrnn::MISTRNN_ISA {

struct Crew {
  alignas(64) long arrived = 0;
  alignas(64) long round = 0;
  long refused_in[2] = {-1, -1};
  void* board = nullptr;
};

// One of the threads; by itself, it is all there are.
struct Member {
  Crew* crew = nullptr;
  long index = 0, size = 1;

  void wait() const {  // until all are here, and what they have written can be read
    if (size == 1) return;
    const long now = __atomic_load_n(&crew->round, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&crew->arrived, 1, __ATOMIC_ACQ_REL) == size) {
      __atomic_store_n(&crew->arrived, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&crew->round, now + 1, __ATOMIC_RELEASE);
      return;
    }
    for (long looks = 0; __atomic_load_n(&crew->round, __ATOMIC_ACQUIRE) == now; looks++) {
      constexpr long kPatience = 2000;  // then somebody else may need the core
      if (looks > kPatience) sched_yield();
      else breathe();
    }
  }

  bool all(bool mine) const {  // whether it is true of all members
    if (size == 1) return mine;
    // Nobody is ever two rounds ahead of another, who may still be reading.
    const long now = __atomic_load_n(&crew->round, __ATOMIC_RELAXED);
    if (!mine) __atomic_store_n(&crew->refused_in[now % 2], now, __ATOMIC_RELAXED);
    wait();
    return __atomic_load_n(&crew->refused_in[now % 2], __ATOMIC_RELAXED) != now;
  }

  // Of `count` things, those of this member, in one piece.
  struct Stretch {
    long first, end;
  };
  Stretch stretch(long count) const { return {count * index / size, count * (index + 1) / size}; }

  template <class T> T* handed_out(T* place) const {  // what the first member has
    if (size == 1) return place;
    if (index == 0) crew->board = place;
    wait();
    place = (T*)crew->board;
    wait();
    return place;
  }

 private:
  static void breathe() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
};

// The numbers below a limit that are one member's: every size-th.
class Turns {
 public:
  Turns(const Member& me, long limit) : first_{me.index, me.size}, last_{limit, me.size} {}
  struct At {
    long i, step;
    long operator*() const { return i; }
    void operator++() { i += step; }
    bool operator!=(const At& last) const { return i < last.i; }
  };
  At begin() const { return first_; }
  At end() const { return last_; }

 private:
  At first_, last_;
};

}  // namespace mistrnn::MISTRNN_ISA
