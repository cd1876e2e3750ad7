// A block of sequences on its way through time: what a cell sees of it.
//
// A cell (layers/<layer>/cpu.h) describes its weight matrix and says what one step computes, forwards and backwards, for
// the first n sequences of the block; everything else is here and in recurrence.h. Sequences are ordered by length, the
// longest first, so that the ones that are still running at a step are always the first n.
//
// The weight matrix is seen as one matrix W [rows][columns]. A row is a unit of a gate; gates ("blocks") start at whole
// vectors. The columns are what the product reads, a vector u = [h or the delayed h's | 1 | x]: the bias is the column of
// the 1. `Part`s are the rectangles of W that one product uses.
#pragma once

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels/cpu/call.h"
#include "kernels/cpu/crew.h"
#include "kernels/cpu/product.h"

namespace mistrnn::MISTRNN_ISA {

// Ask for large pages under a big piece of memory that is about to be written for the first time: the operating system would
// otherwise hand it out in thousands of small ones, which takes longer than to fill them. Only a hint.
inline void large_pages(void* p, long bytes) {
#if defined(__linux__)
  constexpr long kPage = 2 * 1024 * 1024;
  const uintptr_t first = ((uintptr_t)p + kPage - 1) / kPage * kPage, end = ((uintptr_t)p + bytes) / kPage * kPage;
  if (p && end > first + kPage) madvise((void*)first, end - first, MADV_HUGEPAGE);
#else
  (void)p, (void)bytes;
#endif
}

constexpr int kReads = 2;  // vectors u that a step reads: one, two in MIST

// The memory of one thread. What one share of the work asks for is there for the next one, which asks for the same sizes
// in the same order: getting fresh memory from the operating system takes long, and threads wait for each other in it.
class Arena {
 public:
  ~Arena() {
    while (count_ > 0) free(held_[--count_].place);
    free(held_);
  }
  template <class T> T* zeros(long n) {
    T* place = room<T>(n);
    return place ? (T*)memset(place, 0, sizeof(T) * (n > 0 ? n : 0)) : nullptr;
  }
  template <class T> T* room(long n) {  // as it comes
    const size_t bytes = (size_t)round_up((n > 0 ? n : 1) * (long)sizeof(T), 64);
    if (next_ < count_ && held_[next_].bytes != bytes)
      while (count_ > next_) free(held_[--count_].place);
    if (next_ == count_ && !take(bytes)) return failed = true, nullptr;
    return (T*)held_[next_++].place;
  }
  void start_over() { next_ = 0; }
  bool failed = false;

 private:
  struct Piece {
    void* place;
    size_t bytes;
  };
  bool take(size_t bytes) {
    if (count_ == room_) {
      Piece* more = (Piece*)realloc(held_, sizeof(Piece) * (room_ + 64));
      if (!more) return false;
      held_ = more, room_ += 64;
    }
    void* place = nullptr;
    if (posix_memalign(&place, 64, bytes) != 0) return false;
    large_pages(place, (long)bytes);
    held_[count_++] = {place, bytes};
    return true;
  }
  Piece* held_ = nullptr;
  long next_ = 0, count_ = 0, room_ = 0;
};

struct Sequence {
  long b, length;
  long first, direction;  // the time of step s is first + s * direction
  long time(long s) const { return first + s * direction; }
};

struct Gate {          // a block of rows of W
  long size;           // units
  long row;            // its first row in W, a whole number of vectors
  long parameter_row;  // its first row in the parameters
  bool reads_h, reads_x;
  bool own_bias;  // GRU's bias_hn instead of bias
};

template <class F> struct Part {  // a rectangle of W, laid out for products in both directions
  long row, rows, column, columns;
  int read;       // which u it multiplies
  int use;        // in which directions there are products with it
  F* panels;      // the weights, as the products of the run's direction read them
  uint8_t* idle;  // [rows of a chunk] whether its dz there is zero throughout
};
enum Use { kForwards = 1, kBackwards = 2, kBothWays = 3 };

template <class F> struct Rows {
  const Call& call;
  Arena& arena;
  const Member me;               // of the threads that go through time with these sequences
  const long e, H, I, M, D;
  long count = 0;                // sequences in the block
  Sequence* sequences = nullptr;
  int32_t* origins = nullptr;    // [B][T] the newest reset at or before a step, -1 for none; null without resets

  // W and what the products need.
  long Kh = 0, K = 0, G = 0;     // columns of the h part, all columns, rows of the parameters
  long P = 0;                    // diagonal weights: vectors [H] that multiply the second state component
  long W_rows = 0, W_stride = 0, u_stride = 0, z_stride = 0, h_stride = 0;
  Gate* gates = nullptr;
  int gate_count = 0;
  Part<F>* parts = nullptr;
  int part_count = 0, reads = 1;
  F* dW = nullptr;                              // [W_rows][W_stride]
  F *d_gain = nullptr, *d_norm_bias = nullptr;  // [G], only with layer norm
  F* d_diagonal = nullptr;                      // [P][H], null if no gradients of parameters are wanted
  const F *gain = nullptr, *norm_bias = nullptr;  // [G]

  // Rows of the step at hand; in the backward pass u and z lie in the chunk whose weight gradients are still to be taken.
  long chunk_row = 0;            // where in the chunk they begin
  F* u_rows[kReads] = {};        // [count][u_stride]
  F* z_rows = nullptr;           // [count][z_stride] pre-activations, or their gradients
  F *fresh_rows = nullptr;       // [count][h_stride] the new h, before zoneout
  F *dh_rows = nullptr;          // [count][h_stride] gradient of the new h
  F *carry_rows = nullptr;       // [count][h_stride] gradient of the h one step earlier
  F* du_rows[kReads] = {};       // [count][u_stride]
  F* zero_row = nullptr;         // [h_stride]

  Rows(const Call& c, Arena& a, long trial, Member member)
      : call(c), arena(a), me(member), e(trial), H(c.H), I(c.I), M(c.M), D(c.D) {}

  static constexpr long L = lanes<F>;
  Turns mine(long n) const { return {me, n}; }  // the sequences that this thread looks after
  template <class T> T* shared(long n) {        // zeros that all members see
    T* place = me.handed_out(me.index == 0 ? arena.zeros<T>(n) : nullptr);
    if (!place) arena.failed = true;
    return place;
  }
  long sums_size() const { return 2 * G + P * H; }  // gradients that each member adds up, see weights.h
  const F* diagonal(int k) const { return (const F*)call.weight_ch + e * call.weight_ch_trial + k * H; }
  F* u(int k, long i) { return u_rows[k] + i * u_stride; }
  F* du(int k, long i) { return du_rows[k] + i * u_stride; }
  F* z(long i, int gate) { return z_rows + i * z_stride + gates[gate].row; }
  F* fresh(long i) { return fresh_rows + i * h_stride; }
  F* dh(long i) { return dh_rows + i * h_stride; }
  F* carry(long i) { return carry_rows + i * h_stride; }

  template <class T> static T* offset(const void* p, long n) { return p ? (T*)p + n : nullptr; }
  const F* x(long i, long s) const {
    const Sequence& q = sequences[i];
    return (const F*)call.x + e * call.x_trial + q.time(s) * call.x_time + q.b * call.x_sequence;
  }
  F* saved(long i, long s) const { return (F*)call.saved + ((e * call.T + s) * call.B + sequences[i].b) * call.S; }
  F* output(long i, long s) const {
    const Sequence& q = sequences[i];
    return (F*)call.output + ((e * call.T + q.time(s)) * call.B + q.b) * H;
  }
  const F* dropout(long i) const {
    return offset<const F>(call.dropout, e * call.dropout_trial + sequences[i].b * H);
  }
  const uint8_t* kept(const uint8_t* mask, long trial_stride, long i, long s) const {
    return mask ? mask + e * trial_stride + (s * call.B + sequences[i].b) * H : nullptr;
  }
  long state_row(long i, long m) const { return (m * call.B + sequences[i].b) * H; }  // in [M, B, H]

  // The newest reset at or before step s; after the last step, the newest of all.
  long origin(long i, long s) const {
    const Sequence& q = sequences[i];
    if (!origins || q.length == 0) return -1;
    return origins[q.b * call.T + (s < q.length ? s : q.length - 1)];
  }
  // Whether step s sees the state d steps before it: nothing leaks across a reset.
  bool sees(long i, long s, long d) const { return origin(i, s) < 0 || s - d >= origin(i, s); }

  const F* past(long i, long s, long d) const {  // h_{s-d}, zero where the sequence had not begun by then
    if (!sees(i, s, d)) return zero_row;
    if (s >= d) return output(i, s - d);
    return (const F*)call.initial_h + e * call.initial_h_trial + state_row(i, M + s - d);
  }
  long clock(long i, long s) const {
    const long o = origin(i, s);
    return o >= 0 ? s - o : (long)call.clock[e * call.clock_trial + sequences[i].b] + s;
  }

  // u = [dropped out h | 1 | x]; the h part of NARX is filled delay by delay.
  void read_h(int k, long i, const F* h, long column = 0) {
    F* to = u(k, i) + column;
    if (const F* mask = dropout(i)) {
      for (long j = 0; j < H; j += L) store_at(to, j, H, load_at(h, j, H) * load_at(mask, j, H));
    } else {
      memcpy(to, h, sizeof(F) * H);
    }
  }
  void read_x(int k, long i, long s) {
    F* to = u(k, i) + Kh;
    to[0] = F(1);
    memcpy(to + 1, x(i, s), sizeof(F) * I);
  }

  void forward(int part, long n) {  // z = u W'
    const Part<F>& p = parts[part];
    multiply_by(p, n, u_rows[p.read] + p.column, u_stride, p.columns, p.rows, z_rows + p.row, z_stride, false);
  }
  bool wants_x() const { return call.d_x != nullptr; }
  // du (+)= dz W, for the columns of h, and of x if their gradient is wanted.
  void backward(int part, long n, bool add) {
    const Part<F>& p = parts[part];
    multiply_back(part, n, z_rows + p.row, z_stride, du_rows[p.read] + p.column, add);
  }
  void multiply_back(int part, long n, const F* dz, long dz_stride, F* du, bool add) {
    const Part<F>& p = parts[part];
    const long end = p.column + p.columns, wanted = wants_x() || end < Kh ? end : Kh;
    multiply_by(p, n, dz, dz_stride, p.rows, wanted - p.column, du, u_stride, add);
  }
  // A product with some panels for each member.
  void multiply_by(const Part<F>& p, long n, const F* a, long a_stride, long k_count, long columns, F* c, long c_stride,
                   bool add) {
    constexpr long kWidth = panel_width<F>;
    const auto mine = me.stretch(panels_of<F>(columns));
    const long first = mine.first * kWidth, end = mine.end * kWidth < columns ? mine.end * kWidth : columns;
    me.wait();
    multiply<F>(n, a, a_stride, 1, p.panels + first * k_count, kWidth, kWidth * k_count, k_count, end - first, c + first,
                c_stride, add);
    me.wait();
  }
  // dW += dz' u over the rows of a chunk, but for stretches of them in which the part was idle; some units for each member.
  void weight_gradient(const Part<F>& p, const F* z, const F* u, long chunk) {
    constexpr long kWorthIt = 8;  // a product over so few rows more costs less than to begin another one
    const auto mine = me.stretch((p.rows + kTileRows - 1) / kTileRows);
    const long unit = mine.first * kTileRows, end_unit = mine.end * kTileRows < p.rows ? mine.end * kTileRows : p.rows;
    z += p.row + unit;
    u += p.column;
    for (long first = 0, end; first < chunk; first = end) {
      end = first + 1;
      if (p.idle[first]) continue;
      for (long row = end; row < chunk && row - end < kWorthIt; row++)
        if (!p.idle[row]) end = row + 1;
      multiply<F>(end_unit - unit, z + first * z_stride, 1, z_stride, u + first * u_stride, u_stride, panel_width<F>, end - first,
                  p.columns, dW + (p.row + unit) * W_stride + p.column, W_stride, true);
    }
  }
  // Instead of `backward`, where a part has dz = 0 in all rows of this step.
  void nothing_to_send(int part, long n) { memset(parts[part].idle + chunk_row, 1, n); }
  // The gradient that a recurrent matrix sends back to h, where the mask of recurrent dropout let it read.
  void send_back(long i, const F* du_h, F* to) {
    const F* mask = dropout(i);
    for (long j = 0; j < H; j += L) {
      Vec<F> d = load_at(du_h, j, H);
      if (mask) d *= load_at(mask, j, H);
      store(to + j, load(to + j) + d);
    }
  }

  // Layer norm of one gate's pre-activations in place: z -> norm(z) * gain + bias. Without layer norm nothing happens.
  void norm(long i, long s, int gate) {
    if (!call.layer_norm) return;
    const Gate& g = gates[gate];
    F* y = z(i, gate);
    Vec<F> total = F(0), square = F(0);
    for (long j = 0; j < g.size; j += L) total += load_at(y, j, g.size);
    const F mean = sum<F>(total) / F(g.size);
    for (long j = 0; j < g.size; j += L) {
      Vec<F> from_mean = load_at(y, j, g.size) - mean;
      if (j + L > g.size) from_mean = first_lanes<F>(from_mean, g.size - j);
      square += from_mean * from_mean;
    }
    const F scale = F(1 / __builtin_sqrt((double)(sum<F>(square) / F(g.size) + F(1e-5))));
    F* hat = call.save ? norm_saved(i, s) + g.parameter_row : nullptr;
    if (hat) norm_saved(i, s)[G + gate] = scale;
    const F *weight = gain + g.parameter_row, *shift = norm_bias ? norm_bias + g.parameter_row : nullptr;
    for (long j = 0; j < g.size; j += L) {
      const Vec<F> value = (load_at(y, j, g.size) - mean) * scale;
      if (hat) store_at(hat, j, g.size, value);
      Vec<F> result = value * load_at(weight, j, g.size);
      if (shift) result += load_at(shift, j, g.size);
      store_at(y, j, g.size, result);
    }
  }
  // ... and of its gradient.
  void norm_backward(long i, long s, int gate) {
    if (!call.layer_norm) return;
    const Gate& g = gates[gate];
    F *dy = z(i, gate), *dg = d_gain + g.parameter_row, *db = d_norm_bias + g.parameter_row;
    const F *hat = norm_saved(i, s) + g.parameter_row, *weight = gain + g.parameter_row;
    const F scale = norm_saved(i, s)[G + gate];
    Vec<F> total = F(0), along = F(0);
    for (long j = 0; j < g.size; j += L) {
      const Vec<F> d = load_at(dy, j, g.size), normed = load_at(hat, j, g.size), weighted = d * load_at(weight, j, g.size);
      if (d_gain) {  // not where no gradients of parameters are wanted
        store_at(dg, j, g.size, load_at(dg, j, g.size) + d * normed);
        store_at(db, j, g.size, load_at(db, j, g.size) + d);
      }
      store_at(dy, j, g.size, weighted);
      total += weighted;
      along += weighted * normed;
    }
    const F mean = sum<F>(total) / F(g.size), slope = sum<F>(along) / F(g.size);
    for (long j = 0; j < g.size; j += L)
      store_at(dy, j, g.size, scale * (load_at(dy, j, g.size) - mean - load_at(hat, j, g.size) * slope));
  }
  // The last of the saved values: normalised pre-activations [G], and a scale for each gate.
  F* norm_saved(long i, long s) const { return saved(i, s) + call.S - G - gate_count_normed(); }
  long gate_count_normed() const { return gates[gate_count - 1].own_bias ? gate_count - 1 : gate_count; }

  // The new h before zoneout, as the backward pass needs it. Zoneout by masks passes no gradient to a unit that was
  // kept, so there the output will do; in evaluation it is a mixture, and the new value was saved last but for the norms.
  const F* fresh_again(long i, long s) const {
    if (call.zoneout == 0) return output(i, s);
    return saved(i, s) + call.S - H - (call.layer_norm ? G + gate_count_normed() : 0);
  }
  void save_fresh(long i, long s) {
    if (call.save && call.zoneout != 0) memcpy((F*)fresh_again(i, s), fresh(i), sizeof(F) * H);
  }

  // h = tanh(z) of a gate that is the new h, and dz = dh (1 - h^2).
  void tanh_of(long i, int gate) {
    const F* from = z(i, gate);
    for (long j = 0; j < H; j += L) store(fresh(i) + j, tanh<F>(load(from + j)));
  }
  void tanh_backward(long i, long s, int gate) {
    const F *h = fresh_again(i, s), *d = dh(i);
    F* dz = z(i, gate);
    for (long j = 0; j < H; j += L) {
      const Vec<F> value = load_at(h, j, H);
      store(dz + j, load(d + j) * (1 - value * value));
    }
  }

  // Describe W, called once by the cell.
  void gate(long size, long parameter_row, bool reads_h = true, bool reads_x = true, bool own_bias = false) {
    gates[gate_count++] = {size, W_rows, parameter_row, reads_h, reads_x, own_bias};
    W_rows += round_up(size, L);
  }
  void part(int first_gate, int gates_in_it, long column, long end, int read = 0, int use = kBothWays) {
    const Gate &first = gates[first_gate], &last = gates[first_gate + gates_in_it - 1];
    const long count = last.row + round_up(last.size, L) - first.row;
    parts[part_count++] = {first.row, count, column, end - column, read, use, nullptr, nullptr};
  }
};

}  // namespace mistrnn::MISTRNN_ISA
