// The one loop over time of every fused CPU form, forwards and backwards, with the cell plugged in.
//
// A thread takes some sequences of a trial through all steps by itself: sequences do not depend on each other, so threads
// never wait for one another, and the weights stay in the thread's own cache. Where those are too many for a cache, threads
// form a crew (crew.h): each runs this same loop, with the sequences that are its own and a part of every product.
#pragma once

#include "kernels/cpu/weights.h"

namespace mistrnn::MISTRNN_ISA {

template <class F, class Cell> class Recurrence {
 public:
  Recurrence(const Call& call, Arena& arena, long e, bool is_backward, Member me = {})
      : arena_(arena), rows_(call, arena, e, me), is_backward_(is_backward) {}

  // First the cell says what its weights are like ...
  bool describe() {
    Rows<F>& r = rows_;
    const long many = r.D > 4 ? r.D : 4;
    r.gates = arena_.template zeros<Gate>(many);
    r.parts = arena_.template zeros<Part<F>>(many + 2);
    if (arena_.failed) return false;
    r.Kh = r.H;
    cell_.describe(r);
    r.K = r.Kh + 1 + r.I;
    for (int g = 0; g < r.gate_count; g++)
      if (!r.gates[g].own_bias) r.G += r.gates[g].size;
    r.h_stride = stride(r.H);
    r.z_stride = stride(r.W_rows);
    r.u_stride = r.W_stride = stride(r.K);
    return true;
  }

  // ... then somebody lays them out (weights.h) ...
  Weights<F, Cell> weights() { return {rows_, cell_, is_backward_}; }

  // ... and there is memory for `count` sequences in blocks of at most `most`.
  bool prepare(const Call& call, long count, long most) {
    Rows<F>& r = rows_;
    if (call.layer_norm) {
      r.gain = (const F*)call.gain + r.e * call.gain_trial;
      r.norm_bias = Rows<F>::template offset<const F>(call.bias, r.e * call.bias_trial);
    }
    r.zero_row = arena_.template zeros<F>(r.h_stride);
    r.fresh_rows = r.template shared<F>(most * r.h_stride);
    chunk_rows_ = most;
    if (is_backward_) {
      r.dh_rows = r.template shared<F>(most * r.h_stride);
      r.carry_rows = r.template shared<F>(most * r.h_stride);
      for (int k = 0; k < r.reads; k++) r.du_rows[k] = r.template shared<F>(most * r.u_stride);
      // Weight gradients are one product over as many rows as stay in the cache with what they read, and sums of such
      // sums; no more rows than that, because a long sum rounds too often.
      const long fit = kChunkBytes / (long)sizeof(F) / (r.z_stride + r.reads * r.u_stride);
      chunk_rows_ = fit < kChunkRows ? fit : kChunkRows;
      if (chunk_rows_ > count * call.T) chunk_rows_ = count * call.T;
      if (chunk_rows_ < most) chunk_rows_ = most;
    }
    z_chunk_ = r.template shared<F>(chunk_rows_ * r.z_stride);
    for (int k = 0; k < r.reads; k++) u_chunk_[k] = r.template shared<F>(chunk_rows_ * r.u_stride);
    for (int p = 0; is_backward_ && p < r.part_count; p++) r.parts[p].idle = arena_.template zeros<uint8_t>(chunk_rows_);
    at_chunk(0);
    cell_.prepare(r, most, is_backward_);
    return r.me.all(!arena_.failed);
  }

  void forward(const Call& call, const Sequence* sequences, long count, int32_t* origins) {
    Rows<F>& r = rows_;
    r.sequences = (Sequence*)sequences, r.count = count, r.origins = origins;
    cell_.begin(r);
    for (long s = 0, n = count; s < sequences[0].length; s++) {
      while (sequences[n - 1].length <= s) n--;
      cell_.forward(r, s, n);
      for (long i : r.mine(n)) {
        if (Cell::kSavesFresh) r.save_fresh(i, s);
        keep_some(r, i, s);
      }
    }
    for (long i : r.mine(count)) {
      const Sequence& q = sequences[i];
      for (long m = 0; call.final_h && m < r.M; m++)
        memcpy((F*)call.final_h + r.e * r.M * call.B * r.H + r.state_row(i, m), r.past(i, q.length, r.M - m),
               sizeof(F) * r.H);
      for (long t = q.length; t < call.T; t++) {
        memset((F*)call.output + ((r.e * call.T + t) * call.B + q.b) * r.H, 0, sizeof(F) * r.H);
        if (call.save) memset(r.saved(i, t), 0, sizeof(F) * call.S);
      }
    }
    cell_.finish(r);
  }

  void backward(const Call& call, const Sequence* sequences, long count, int32_t* origins, const Gradients<F>& to) {
    Rows<F>& r = rows_;
    r.sequences = (Sequence*)sequences, r.count = count, r.origins = origins;
    r.dW = to.weights, r.d_gain = to.gain(r.me.index), r.d_norm_bias = to.norm_bias(r.me.index, r.G);
    r.d_diagonal = to.diagonal(r.me.index, r.G);
    for (long i : r.mine(count)) {
      memset(r.carry(i), 0, sizeof(F) * r.h_stride);
      memset(r.dh(i), 0, sizeof(F) * r.h_stride);
    }
    cell_.begin_backward(r);
    for (long s = sequences[0].length - 1, n = 0; s >= 0; s--) {
      while (n < count && sequences[n].length > s) n++;
      for (long i : r.mine(n)) arriving(call, i, s);
      cell_.gather(r, s, n);
      for (long i : r.mine(n)) {
        const long t = sequences[i].time(s);
        if (call.d_probe_h) memcpy(probe(call, call.d_probe_h, i, t), r.dh(i), sizeof(F) * r.H);
        if (call.d_probe_c) memcpy(probe(call, call.d_probe_c, i, t), cell_.beside(r, i), sizeof(F) * r.H);
      }
      // A step that no gradient reaches has none to send: with the loss at the last step and gradients that vanish,
      // most steps are such.
      if (r.me.all(all_zero(n) && cell_.nothing_arrives(r, s, n))) {
        cell_.skip(r, s);
        for (long i : r.mine(call.d_x ? n : 0)) memset(d_x(call, i, s), 0, sizeof(F) * r.I);
        continue;
      }
      if (position_ + count > chunk_rows_) flush();
      at_chunk(position_);
      for (long i : r.mine(n)) split_kept(r, i, s);
      cell_.backward(r, s, n);
      for (long i : r.mine(n)) {
        if (!r.sees(i, s, 1)) {  // a reset: nothing goes further back
          memset(r.carry(i), 0, sizeof(F) * r.H);
          cell_.cut(r, i);
        }
        if (call.d_x) {
          F* to = d_x(call, i, s);
          for (long j = 0; j < r.I; j++) {
            to[j] = r.du(0, i)[r.Kh + 1 + j];
            if (r.reads == 2) to[j] += r.du(1, i)[r.Kh + 1 + j];
          }
        }
      }
      if (r.dW) position_ += n;
    }
    flush();
    for (long i : r.mine(count)) {
      for (long t = sequences[i].length; call.d_x && t < call.T; t++)
        memset((F*)call.d_x + ((r.e * call.T + t) * call.B + sequences[i].b) * r.I, 0, sizeof(F) * r.I);
      for (long t = sequences[i].length; t < call.T; t++) {
        if (call.d_probe_h) memset(probe(call, call.d_probe_h, i, t), 0, sizeof(F) * r.H);
        if (call.d_probe_c) memset(probe(call, call.d_probe_c, i, t), 0, sizeof(F) * r.H);
      }
    }
    if (call.d_initial_h) initial_gradients(call);
    cell_.finish_backward(r);
  }

  long gradient_size() const { return rows_.W_rows * rows_.W_stride; }
  long sums_size() const { return rows_.sums_size(); }

 private:
  static constexpr long kChunkBytes = 512 * 1024, kChunkRows = 64;

  // Room for a last partial vector, and no multiple of 1 KiB, which would crowd rows into the same places of the cache.
  static long stride(long n) {
    const long padded = round_up(n + lanes<F>, lanes<F>);
    return padded * sizeof(F) % 1024 == 0 ? padded + lanes<F> : padded;
  }

  void at_chunk(long position) {
    rows_.chunk_row = position;
    rows_.z_rows = z_chunk_ + position * rows_.z_stride;
    for (int k = 0; k < rows_.reads; k++) rows_.u_rows[k] = u_chunk_[k] + position * rows_.u_stride;
  }

  void flush() {
    rows_.me.wait();
    for (int p = 0; position_ > 0 && p < rows_.part_count; p++) {
      const Part<F>& part = rows_.parts[p];
      if (part.use & kForwards) rows_.weight_gradient(part, z_chunk_, u_chunk_[part.read], position_);
      memset(part.idle, 0, chunk_rows_);
    }
    rows_.me.wait();  // until nobody reads the chunk any more
    position_ = 0;
  }

  // Zoneout: units keep their previous value where a mask says so, or in evaluation in expectation.
  void keep_some(Rows<F>& r, long i, long s) {
    constexpr long L = lanes<F>;
    const F *fresh = r.fresh(i), *before = r.past(i, s, 1);
    F* to = r.output(i, s);
    if (const uint8_t* kept = r.kept(r.call.keep_h, r.call.keep_h_trial, i, s)) {
      for (long j = 0; j < r.H; j++) to[j] = kept[j] ? before[j] : fresh[j];
    } else if (r.call.zoneout != 0) {
      const F p = F(r.call.zoneout);
      for (long j = 0; j < r.H; j += L)
        store_at(to, j, r.H, p * load_at(before, j, r.H) + (1 - p) * load(fresh + j));
    } else {
      memcpy(to, fresh, sizeof(F) * r.H);
    }
  }

  // ... and backwards: the kept share of the gradient goes one step back, the rest to the new value.
  void split_kept(Rows<F>& r, long i, long s) {
    F *dh = r.dh(i), *carry = r.carry(i);
    memset(carry, 0, sizeof(F) * r.h_stride);
    if (const uint8_t* kept = r.kept(r.call.keep_h, r.call.keep_h_trial, i, s)) {
      for (long j = 0; j < r.H; j++)
        if (kept[j]) carry[j] = dh[j], dh[j] = F(0);
    } else if (r.call.zoneout != 0) {
      const F p = F(r.call.zoneout);
      for (long j = 0; j < r.H; j++) carry[j] = p * dh[j], dh[j] *= 1 - p;
    }
  }

  // dh = what later steps sent, plus what comes from the output and from the final state.
  void arriving(const Call& call, long i, long s) {
    Rows<F>& r = rows_;
    const Sequence& q = r.sequences[i];
    F *dh = r.dh(i), *carry = r.carry(i);
    memcpy(dh, carry, sizeof(F) * r.h_stride);
    memset(carry, 0, sizeof(F) * r.h_stride);
    if (call.d_output) {
      const F* d = (const F*)call.d_output + r.e * call.d_output_trial + q.time(s) * call.d_output_time +
                   q.b * call.d_output_sequence;
      if (call.d_output_unit == 1) add(dh, d);
      else if (call.d_output_unit == 0)  // one number for all units, as the gradient of a sum is
        for (long j = 0; j < r.H; j++) dh[j] += d[0];
      else
        for (long j = 0; j < r.H; j++) dh[j] += d[j * call.d_output_unit];
    }
    add_final(call, i, s, dh);
  }

  void add_final(const Call& call, long i, long s, F* dh) {
    const long d = rows_.sequences[i].length - s;
    if (call.d_final_h && d <= rows_.M && rows_.sees(i, rows_.sequences[i].length, d))
      add(dh, (const F*)call.d_final_h + rows_.e * call.d_final_h_trial + rows_.state_row(i, rows_.M - d));
  }

  void add(F* to, const F* from) {
    for (long j = 0; j < rows_.H; j += lanes<F>)
      store_at(to, j, rows_.H, load_at(to, j, rows_.H) + load_at(from, j, rows_.H));
  }

  bool all_zero(long n) {
    for (long i : rows_.mine(n))
      for (long j = 0; j < rows_.H; j++)
        if (!(rows_.dh(i)[j] == F(0))) return false;
    return true;
  }

  F* d_x(const Call& call, long i, long s) {
    const Sequence& q = rows_.sequences[i];
    return (F*)call.d_x + ((rows_.e * call.T + q.time(s)) * call.B + q.b) * rows_.I;
  }

  F* probe(const Call& call, void* of, long i, long t) {
    return (F*)of + ((rows_.e * call.T + t) * call.B + rows_.sequences[i].b) * rows_.H;
  }

  void initial_gradients(const Call& call) {
    Rows<F>& r = rows_;
    for (long back = 1; back <= r.M; back++) {
      for (long i : r.mine(r.count)) {
        if (back == 1) memcpy(r.dh(i), r.carry(i), sizeof(F) * r.h_stride);
        else memset(r.dh(i), 0, sizeof(F) * r.h_stride);
        add_final(call, i, -back, r.dh(i));
      }
      cell_.gather(r, -back, r.count);
      for (long i : r.mine(r.count))
        memcpy((F*)call.d_initial_h + r.e * r.M * call.B * r.H + r.state_row(i, r.M - back), r.dh(i), sizeof(F) * r.H);
    }
  }

  Arena& arena_;
  Rows<F> rows_;
  Cell cell_;
  const bool is_backward_;
  long chunk_rows_ = 0, position_ = 0;
  F *z_chunk_ = nullptr, *u_chunk_[kReads] = {};
};

// Defaults of the hooks of a cell.
template <class F> struct CellDefaults {
  static constexpr bool kSavesFresh = true;  // whether the backward pass reads the new h where zoneout hides it
  void prepare(Rows<F>&, long, bool) {}
  bool exists(const Rows<F>&, int, long) const { return true; }          // whether gate g reads column k of h ...
  long block(const Rows<F>& r) const { return r.Kh; }                    // ... and as many from there on, k a multiple
  void begin(Rows<F>&) {}
  void finish(Rows<F>&) {}
  void begin_backward(Rows<F>&) {}
  void finish_backward(Rows<F>&) {}
  void gather(Rows<F>&, long, long) {}                                   // dh += what steps further than one away send
  F* beside(Rows<F>& r, long) { return r.zero_row; }                     // what arrives beside dh
  bool nothing_arrives(Rows<F>&, long, long) { return true; }            // ... which is nothing but zeros
  void skip(Rows<F>&, long) {}
  void cut(Rows<F>&, long) {}                                            // a reset: drop what goes back beside dh
};

}  // namespace mistrnn::MISTRNN_ISA
