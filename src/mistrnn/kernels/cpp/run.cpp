// One run for one instruction set: share the sequences out among threads, and add up what they return.
//
// Compiled once for every instruction set, with MISTRNN_ISA naming it.
#include <pthread.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernels/cpp/recurrence.h"
#include "layers/clockwork/cpu.h"
#include "layers/gru/cpu.h"
#include "layers/lstm/cpu.h"
#include "layers/mist/cpu.h"
#include "layers/narx/cpu.h"
#include "layers/rnn/cpu.h"

inline void* operator new(size_t, void* place) noexcept { return place; }  // what <new> has; no C++ library is linked

namespace mistrnn::MISTRNN_ISA {

// Numbers too small for the type's full precision count as zero while this lives: CPUs compute with them many times slower,
// and gradients that vanish pass through them. The mode belongs to the thread and is put back.
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

// Call work(0, its thread's memory) ... work(count - 1, ...), member k of the team taking every size-th. The members are the
// threads of torch's OpenMP if they can be had, else threads that live as long as the call.
template <class Work> struct Team {
  Work* work;
  long count, size, next;

  static void* take_places(void* p) {
    Team* team = (Team*)p;
    FlushSubnormals flush;
    Arena arena;
    for (long k; (k = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < team->size;)
      for (; k < team->count; k += team->size, arena.start_over()) (*team->work)(k, arena);
    return nullptr;
  }
};

template <class Work> void in_parallel(const Call& call, long count, Work work) {
  const long size = call.threads < count ? call.threads : count;
  Team<Work> team{&work, count, size, 0};
  if (size > 1 && call.team) {
    call.team([](void* p) { Team<Work>::take_places(p); }, &team, (unsigned)size, 0);
    return;
  }
  constexpr long kMost = 256;
  pthread_t threads[kMost];
  long started = 0;
  for (; started + 1 < size && started < kMost; started++)
    if (pthread_create(&threads[started], nullptr, Team<Work>::take_places, &team) != 0) break;
  Team<Work>::take_places(&team);  // the caller takes a place, and those that nobody could be started for
  while (started > 0) pthread_join(threads[--started], nullptr);
}

// How many sequences go through time together. A product is fast from 8 rows on; more of them crowd the states out of the
// cache, fewer read the weights too often if those do not fit into it.
inline long block_rows(long weight_bytes, long count) {
  constexpr long kCacheForWeights = 640 * 1024;
  const long most = weight_bytes <= kCacheForWeights ? 2 * kTileRows : 8 * kTileRows;
  const long blocks = (count + most - 1) / most;
  return blocks > 0 ? (count + blocks - 1) / blocks : 1;
}

template <class F, class Cell> Status run(const Call& call, bool is_backward) {
  Arena arena;
  const long E = call.E, B = call.B, T = call.T, steps_bytes = E * T * B * (long)sizeof(F);
  if (is_backward) {
    large_pages(call.d_x, steps_bytes * call.I);
  } else {
    large_pages(call.output, steps_bytes * call.H);
    if (call.save) large_pages(call.saved, steps_bytes * call.S);
  }
  if (B == 0 && !is_backward) return kDone;
  // Whole trials for each thread if there are many, else each trial's sequences in as many shares as there are threads.
  long pieces = E >= 4 * call.threads ? 1 : call.threads;
  const long fewest = 2;  // sequences that are worth a thread
  if (pieces > (B + fewest - 1) / fewest) pieces = (B + fewest - 1) / fewest;
  if (pieces < 1) pieces = 1;

  Sequence* sequences = arena.zeros<Sequence>(E * B);
  Share<F>* shares = arena.zeros<Share<F>>(E * pieces);
  int32_t* origins = call.reset ? arena.zeros<int32_t>(E * B * T) : nullptr;
  long *order = arena.zeros<long>(B), *longer = arena.zeros<long>(T + 2);  // by length: how many sequences are longer
  if (arena.failed) return kOutOfMemory;
  for (long e = 0; e < E; e++) {
    const int64_t* lengths = call.lengths ? call.lengths + e * call.lengths_trial : nullptr;
    // Longest first; equal ones keep their order.
    if (lengths) {
      memset(longer, 0, sizeof(long) * (T + 2));
      for (long b = 0; b < B; b++) longer[lengths[b]]++;
      for (long length = T, before = 0; length >= 0; length--) {
        const long here = longer[length];
        longer[length] = before, before += here;
      }
    }
    for (long b = 0; b < B; b++) order[lengths ? longer[lengths[b]]++ : b] = b;
    // Shares are dealt out in turn, so that each gets long and short sequences.
    Sequence* next = sequences + e * B;
    for (long p = 0; p < pieces; p++) {
      Share<F>& share = shares[e * pieces + p];
      share.e = e, share.sequences = next, share.origins = origins ? origins + e * B * T : nullptr;
      for (long place = p; place < B; place += pieces) {
        const long b = order[place], length = lengths ? lengths[b] : T;
        *next++ = {b, length, call.reverse ? length - 1 : 0, call.reverse ? -1 : 1};
        share.count++;
      }
    }
    for (long b = 0; origins && b < B; b++) {
      const uint8_t* reset = call.reset + e * call.reset_trial;
      int32_t newest = -1;
      for (long s = 0; s < T; s++) {
        if (reset[s * B + b]) newest = (int32_t)s;
        origins[(e * B + b) * T + s] = newest;
      }
    }
  }

  const bool wants_weights = is_backward && call.d_weight_hh;
  volatile bool failed = false;
  // Threads that share a trial share its panels, too, and fill them together.
  const bool shared = pieces > 1;
  const long slices = call.threads;
  Recurrence<F, Cell> any(call, arena, 0, is_backward);
  if (!any.describe()) return kOutOfMemory;
  const long panels_size = any.weights().size();
  F* panels = shared ? arena.room<F>(E * panels_size) : nullptr;
  if (arena.failed) return kOutOfMemory;
  auto of_shared = [&](auto work) {  // work(the recurrence of a trial, a slice of it)
    in_parallel(call, E * slices, [&](long k, Arena& memory) {
      Recurrence<F, Cell> r(call, memory, k / slices, is_backward);
      if (!r.describe()) return (void)(failed = true);
      r.weights().place(panels + k / slices * panels_size);
      work(r, k / slices, k % slices);
    });
  };
  if (shared) of_shared([&](auto& r, long, long slice) {
    if (!r.weights().pack(slice, slices)) failed = true;
  });
  if (failed) return kOutOfMemory;
  in_parallel(call, E * pieces, [&](long k, Arena& memory) {
    Share<F>& share = shares[k];
    if (share.count == 0 && !wants_weights) return;
    Recurrence<F, Cell> r(call, memory, share.e, is_backward);
    if (!r.describe()) return (void)(failed = true);
    const long most = block_rows(r.weight_bytes(), share.count);
    F* own_panels = shared ? panels + share.e * panels_size : memory.room<F>(panels_size);
    if (!own_panels) return (void)(failed = true);
    r.weights().place(own_panels);
    if (!shared && !r.weights().pack(0, 1)) return (void)(failed = true);
    if (!r.prepare(call, share.count, most)) return (void)(failed = true);
    if (wants_weights) {
      const long size = r.gradient_size() + 2 * r.parameter_rows();
      share.dW = !shared ? memory.zeros<F>(size) : (F*)calloc(size, sizeof(F));
      if (!share.dW) return (void)(failed = true);
      large_pages(share.dW, size * (long)sizeof(F));
      share.d_gain = share.dW + r.gradient_size();
      share.d_norm_bias = share.d_gain + r.parameter_rows();
    }
    for (long first = 0; first < share.count; first += most) {
      const long count = share.count - first < most ? share.count - first : most;
      if (is_backward) r.backward(call, share.sequences + first, count, share.origins, share.dW, share.d_gain, share.d_norm_bias);
      else r.forward(call, share.sequences + first, count, share.origins);
    }
    if (wants_weights && !shared) r.weights().hand_over(&share, 1, 0, 1);
  });
  if (wants_weights && shared && !failed) of_shared([&](auto& r, long e, long slice) {
    r.weights().hand_over(shares + e * pieces, pieces, slice, slices);
  });
  for (long k = 0; shared && k < E * pieces; k++) free(shares[k].dW);
  return failed ? kOutOfMemory : kDone;
}

template <class F> Status run(const Call& call, bool is_backward) {
  switch (call.cell) {
    case 0: return run<F, Mist<F>>(call, is_backward);
    case 1: return run<F, Narx<F>>(call, is_backward);
    case 2: return run<F, Clockwork<F>>(call, is_backward);
    case 3: return run<F, Rnn<F>>(call, is_backward);
    case 4: return run<F, Lstm<F>>(call, is_backward);
    case 5: return run<F, Gru<F>>(call, is_backward);
  }
  return kBadCall;
}

int64_t run(const Call& call, bool is_backward) {
  return call.is_double ? run<double>(call, is_backward) : run<float>(call, is_backward);
}

// A stream: the weights laid out once, one step per call. The states of the last M steps lie in a ring of 2M places, each of
// them twice, M places apart: so the last M are always in one piece, oldest first, as a run wants its initial state.
struct AnyStream {
  void (*step)(AnyStream*, const void* x, void* output, long place);
  void (*end)(AnyStream*);
};

template <class F, class Cell> struct StreamOf : AnyStream {
  Call call;
  F* ring;
  int64_t* delays;
  Sequence* sequences;
  long most;
  Arena arena;
  Recurrence<F, Cell> recurrence;

  explicit StreamOf(const Call& c)
      : call(c), ring((F*)c.initial_h), delays(nullptr), sequences(nullptr), most(0), recurrence(call, arena, 0, false) {
    step = [](AnyStream* stream, const void* x, void* output, long place) {
      ((StreamOf*)stream)->take_step(x, output, place);
    };
    end = [](AnyStream* stream) {
      StreamOf* self = (StreamOf*)stream;
      free(self->sequences);
      free(self->delays);
      self->~StreamOf();
      free(self);
    };
  }

  bool prepare() {
    sequences = (Sequence*)calloc(call.B, sizeof(Sequence));
    delays = (int64_t*)calloc(call.D + 1, sizeof(int64_t));
    if (!sequences || !delays) return false;
    for (long d = 0; d < call.D; d++) delays[d] = call.delays[d];  // the caller's may be gone by the next step
    call.delays = delays;
    if (!recurrence.describe()) return false;
    F* panels = arena.template room<F>(recurrence.weights().size());
    if (!panels) return false;
    recurrence.weights().place(panels);
    if (!recurrence.weights().pack(0, 1)) return false;
    most = block_rows(recurrence.weight_bytes(), call.B);
    if (!recurrence.prepare(call, call.B, most)) return false;
    for (long b = 0; b < call.B; b++) sequences[b] = {b, 1, 0, 1};
    return true;
  }

  void take_step(const void* x, void* output, long place) {
    FlushSubnormals flush;
    const long size = call.B * call.H;
    call.x = x, call.output = output, call.initial_h = ring + place * size;
    for (long first = 0; first < call.B; first += most)
      recurrence.forward(call, sequences + first, call.B - first < most ? call.B - first : most, nullptr);
    memcpy(ring + place * size, output, sizeof(F) * size);
    memcpy(ring + (place + call.M) * size, output, sizeof(F) * size);
    for (long b = 0; call.clock && b < call.B; b++) ((int64_t*)call.clock)[b]++;
  }
};

template <class F, class Cell> AnyStream* new_stream(const Call& call) {
  void* place = malloc(sizeof(StreamOf<F, Cell>));
  if (!place) return nullptr;
  StreamOf<F, Cell>* stream = new (place) StreamOf<F, Cell>(call);
  if (stream->prepare()) return stream;
  stream->end(stream);
  return nullptr;
}

template <class F> AnyStream* new_stream(const Call& call) {
  switch (call.cell) {
    case 0: return new_stream<F, Mist<F>>(call);
    case 1: return new_stream<F, Narx<F>>(call);
    case 2: return new_stream<F, Clockwork<F>>(call);
    case 3: return new_stream<F, Rnn<F>>(call);
    case 4: return new_stream<F, Lstm<F>>(call);
    case 5: return new_stream<F, Gru<F>>(call);
  }
  return nullptr;
}

void* new_stream(const Call& call) { return call.is_double ? new_stream<double>(call) : new_stream<float>(call); }
void stream_step(void* stream, const void* x, void* output, long place) {
  ((AnyStream*)stream)->step((AnyStream*)stream, x, output, place);
}
void free_stream(void* stream) { ((AnyStream*)stream)->end((AnyStream*)stream); }

}  // namespace mistrnn::MISTRNN_ISA
