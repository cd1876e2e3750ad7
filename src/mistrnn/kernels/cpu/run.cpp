// One run for one instruction set: distribute the sequences over threads, and add up their gradients.
//
// Compiled once for every instruction set, with MISTRNN_ISA naming it. hatch_build.py generates cell_headers.inc, which
// includes the cpu.h of every layer, and cells.inc, CELL(index, name, class) for each of them.
#include "kernels/cpu/recurrence.h"
#include "kernels/cpu/team.h"
#include "cell_headers.inc"

inline void* operator new(size_t, void* place) noexcept { return place; }  // what <new> has; no C++ library is linked

namespace mistrnn::MISTRNN_ISA {

// Call work(0, its thread's memory) ... work(count - 1, ...), member k of the team taking every size-th.
template <class Work> void in_parallel(const Call& call, long count, Work work) {
  const long size = call.threads < count ? call.threads : count;
  Team(call, size, [&](long k, long) {
    Arena arena;
    for (; k < count; k += size, arena.start_over()) work(k, arena);
  }).run();
}

// Call work(member, its memory) for members that all run at the same time, `size` if there are threads for as many.
template <class Work> void as_crew(const Call& call, long size, Work work) {
  Crew crew;
  Team(call, size, [&](long k, long present) {
    if (k >= present) return;
    Arena arena;
    work(Member{&crew, k, present}, arena);
  }).run();
}

// How many sequences go through time together. A product is fast from 8 rows on; more of them crowd the states out of the
// cache, fewer read the weights too often if those do not fit into it.
inline long block_rows(long weights_bytes, long count) {
  constexpr long kOwnCache = 640 * 1024;  // what stays in a core's own cache beside the rest
  const long most = weights_bytes <= kOwnCache ? 2 * kTileRows : 8 * kTileRows;
  const long blocks = (count + most - 1) / most;
  return blocks > 0 ? (count + blocks - 1) / blocks : 1;
}

// The sequences of one trial that a thread, or a crew of them, takes through time.
struct Share {
  long e, count;
  const Sequence* sequences;
};

template <class F, class Cell> class Run {
 public:
  Run(const Call& call, bool is_backward)
      : call_(call), is_backward_(is_backward), wants_weights_(is_backward && call.d_weight_hh) {}
  ~Run() {
    for (long k = 0; sums_ && k < share_count_; k++) free(sums_[k].weights);
  }

  Status run() {
    const long E = call_.E, steps_bytes = E * call_.T * call_.B * (long)sizeof(F);
    if (is_backward_) {
      large_pages(call_.d_x, steps_bytes * call_.I);
    } else {
      large_pages(call_.output, steps_bytes * call_.H);
      if (call_.save) large_pages(call_.saved, steps_bytes * call_.S);
    }
    if (call_.B == 0 && !is_backward_) return kDone;
    Recurrence<F, Cell> any(call_, arena_, 0, is_backward_);
    if (!any.describe()) return kOutOfMemory;
    panels_size_ = any.weights().size();
    choose();
    if (!deal_out()) return kOutOfMemory;
    // Threads that share a trial share its panels, too, and fill them together.
    const bool shared = pieces_ > 1 || crew_ > 1;
    if (shared) {
      panels_ = arena_.template room<F>(E * panels_size_);
      if (!panels_ || !new_sums(any.gradient_size(), any.sums_size())) return kOutOfMemory;
      in_slices([&](auto& r, long, long slice, long slices) {
        if (!r.weights().pack(slice, slices)) failed_ = true;
      });
    }
    if (failed_) return kOutOfMemory;
    if (crew_ > 1) {
      as_crew(call_, crew_, [&](Member me, Arena& memory) {
        for (long k = 0; k < share_count_ && take(k, memory, me); k++) memory.start_over();
      });
    } else {
      in_parallel(call_, share_count_, [&](long k, Arena& memory) { take(k, memory, Member{}); });
    }
    if (wants_weights_ && shared && !failed_)
      in_slices([&](auto& r, long e, long slice, long slices) {
        r.weights().hand_over(sums_ + e * pieces_, pieces_, slice, slices);
      });
    return failed_ ? kOutOfMemory : kDone;
  }

 private:
  // Bytes of weights that threads had better share, the same with few sequences, and how many each has then, at least:
  // members wait for each other.
  static constexpr long kWorthACrew = 6 << 20, kWorthACrewOfFew = 2 << 20, kWorthAMember = 512 << 10;

  long panels_bytes() const { return panels_size_ * (long)sizeof(F); }

  // Whole trials for each thread if there are many; else each trial's sequences in as many shares as there are threads, or,
  // where the weights are too many for that, one trial after the other by all threads together.
  void choose() {
    const bool many = call_.E >= 4 * call_.threads, few_sequences = call_.B < 4 * call_.threads;
    const long worth_a_crew = few_sequences ? kWorthACrewOfFew : kWorthACrew;
    if (call_.together < 0 ? !many && panels_bytes() >= worth_a_crew : call_.together) {
      crew_ = call_.together < 0 ? panels_bytes() / kWorthAMember : call_.threads;
      if (crew_ > call_.threads) crew_ = call_.threads;
    }
    constexpr long kWorthAThread = 2;  // sequences
    const long most = (call_.B + kWorthAThread - 1) / kWorthAThread;
    pieces_ = many || crew_ > 1 ? 1 : call_.threads < most ? call_.threads : most;
    if (pieces_ < 1) pieces_ = 1;
    share_count_ = call_.E * pieces_;
  }

  // Share the sequences out, in turn, so that each share has long and short ones; longest first, equal ones in their order.
  bool deal_out() {
    const long E = call_.E, B = call_.B, T = call_.T;
    Sequence* sequences = arena_.template zeros<Sequence>(E * B);
    shares_ = arena_.template zeros<Share>(share_count_);
    origins_ = call_.reset ? arena_.template zeros<int32_t>(E * B * T) : nullptr;
    long *order = arena_.template zeros<long>(B), *longer = arena_.template zeros<long>(T + 2);
    if (arena_.failed) return false;
    for (long e = 0; e < E; e++) {
      const int64_t* lengths = call_.lengths ? call_.lengths + e * call_.lengths_trial : nullptr;
      if (lengths) {  // by length: how many sequences are longer
        memset(longer, 0, sizeof(long) * (T + 2));
        for (long b = 0; b < B; b++) longer[lengths[b]]++;
        for (long length = T, before = 0; length >= 0; length--) {
          const long here = longer[length];
          longer[length] = before, before += here;
        }
      }
      for (long b = 0; b < B; b++) order[lengths ? longer[lengths[b]]++ : b] = b;
      Sequence* next = sequences + e * B;
      for (long p = 0; p < pieces_; p++) {
        Share& share = shares_[e * pieces_ + p];
        share = {e, 0, next};
        for (long place = p; place < B; place += pieces_) {
          const long b = order[place], length = lengths ? lengths[b] : T;
          *next++ = {b, length, call_.reverse ? length - 1 : 0, call_.reverse ? -1 : 1};
          share.count++;
        }
      }
      for (long b = 0; origins_ && b < B; b++) {
        const uint8_t* reset = call_.reset + e * call_.reset_trial;
        int32_t newest = -1;
        for (long s = 0; s < T; s++) {
          if (reset[s * B + b]) newest = (int32_t)s;
          origins_[(e * B + b) * T + s] = newest;
        }
      }
    }
    return true;
  }

  // Room for the weight gradients of each share, which outlives the thread that adds them up.
  bool new_sums(long weights, long sums) {
    if (!wants_weights_) return true;
    sums_ = arena_.template zeros<Gradients<F>>(share_count_);
    const long size = weights + crew_ * sums;
    for (long k = 0; sums_ && k < share_count_; k++) {
      F* place = (F*)calloc(size, sizeof(F));
      if (!place) return false;
      large_pages(place, size * (long)sizeof(F));
      sums_[k] = {place, place + weights, crew_, sums};
    }
    return sums_ != nullptr;
  }

  // work(the recurrence of a trial, the trial, a slice of its weights, of how many) by all threads, if it is worth their time.
  template <class Work> void in_slices(Work work) {
    constexpr long kWorthSlices = 1024 * 1024;  // bytes of weights
    const long slices = panels_bytes() >= kWorthSlices ? call_.threads : 1;
    in_parallel(call_, call_.E * slices, [&](long k, Arena& memory) {
      const long e = k / slices;
      Recurrence<F, Cell> r(call_, memory, e, is_backward_);
      if (!r.describe()) return (void)(failed_ = true);
      r.weights().place(panels_ + e * panels_size_);
      work(r, e, k % slices, slices);
    });
  }

  // Take a share through time; return whether there was memory for it.
  bool take(long k, Arena& memory, Member me) {
    const Share& share = shares_[k];
    if (share.count == 0 && !wants_weights_) return true;
    Recurrence<F, Cell> r(call_, memory, share.e, is_backward_, me);
    bool ready = r.describe();
    F* panels = panels_ ? panels_ + share.e * panels_size_ : memory.template room<F>(panels_size_);
    Gradients<F> sums;
    if (sums_) {
      sums = sums_[k];
    } else if (wants_weights_) {
      sums.weights = memory.template zeros<F>(r.gradient_size() + r.sums_size());
      sums.sums = sums.weights + r.gradient_size();
      sums.stride = r.sums_size();
    }
    ready = ready && !memory.failed;
    if (ready) r.weights().place(panels);
    if (ready && !panels_) ready = r.weights().pack(0, 1);
    const long most = block_rows(panels_bytes(), share.count);
    if (!me.all(ready) || !r.prepare(call_, share.count, most)) return failed_ = true, false;
    for (long first = 0; first < share.count; first += most) {
      const long count = share.count - first < most ? share.count - first : most;
      const Sequence* sequences = share.sequences + first;
      int32_t* origins = origins_ ? origins_ + share.e * call_.B * call_.T : nullptr;
      if (is_backward_) r.backward(call_, sequences, count, origins, sums);
      else r.forward(call_, sequences, count, origins);
    }
    if (wants_weights_ && !sums_) r.weights().hand_over(&sums, 1, 0, 1);
    me.wait();  // what a member has in its memory, others may still read
    return true;
  }

  const Call& call_;
  const bool is_backward_, wants_weights_;
  Arena arena_;
  long crew_ = 1, pieces_ = 1, share_count_ = 0, panels_size_ = 0;
  Share* shares_ = nullptr;        // [E][pieces]
  Gradients<F>* sums_ = nullptr;   // likewise
  int32_t* origins_ = nullptr;     // [E][B][T] the newest reset at or before a step
  F* panels_ = nullptr;            // [E][panels_size], where threads share a trial
  volatile bool failed_ = false;
};

template <class F, class Cell> Status run(const Call& call, bool is_backward) {
  return Run<F, Cell>(call, is_backward).run();
}

template <class F> Status run(const Call& call, bool is_backward) {
  switch (call.cell) {
#define CELL(index, name, Class) \
  case index: return run<F, Class<F>>(call, is_backward);
#include "cells.inc"
#undef CELL
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
    const long size = recurrence.weights().size();
    F* panels = arena.template room<F>(size);
    if (!panels) return false;
    recurrence.weights().place(panels);
    if (!recurrence.weights().pack(0, 1)) return false;
    most = block_rows(size * (long)sizeof(F), call.B);
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
#define CELL(index, name, Class) \
  case index: return new_stream<F, Class<F>>(call);
#include "cells.inc"
#undef CELL
  }
  return nullptr;
}

void* new_stream(const Call& call) { return call.is_double ? new_stream<double>(call) : new_stream<float>(call); }
void stream_step(void* stream, const void* x, void* output, long place) {
  ((AnyStream*)stream)->step((AnyStream*)stream, x, output, place);
}
void free_stream(void* stream) { ((AnyStream*)stream)->end((AnyStream*)stream); }

}  // namespace mistrnn::MISTRNN_ISA
