// Functions that Python calls; dispatch to the code of this machine's instruction set.
//
// hatch_build.py generates cells.inc, CELL(index, name, class) for each layer that has a cpu.h, and fields.inc,
// FIELD(struct, path, name) for each field of a struct that Python mirrors.
#include <stddef.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/network_stream.h"

namespace mistrnn {
#define MISTRNN_DECLARE(isa)                                   \
  namespace isa {                                              \
  int64_t run(const Call&, bool);                              \
  void* new_stream(const Call&);                               \
  void stream_step(void*, const void* x, void* y, long);       \
  void free_stream(void*);                                     \
  int64_t depthwise_conv(const DepthwiseConv&);                \
  int64_t batch_norm(const BatchNorm&);                        \
  int64_t glu(const GatedUnit&);                               \
  int64_t positive_counts(const PositiveCounts&);              \
  void convolution_step(ConvolutionStep&, const void*, bool, float*); \
  int64_t panel_bytes();                                       \
  void network_step(const Network&, const void*, bool, void*); \
  }
MISTRNN_DECLARE(base)
#if defined(__x86_64__)
MISTRNN_DECLARE(avx2)
MISTRNN_DECLARE(avx512)
#endif

namespace {

#if defined(__x86_64__)
// Instruction sets that both the processor and the operating system support: 2 for AVX-512, 1 for AVX2 with FMA, else 0.
int best_level() {
  unsigned a, b, c, d;
  const unsigned first = (1u << 12) | (1u << 22) | (1u << 27) | (1u << 29);  // FMA, MOVBE, OSXSAVE, F16C
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first) return 0;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x6) != 0x6) return 0;
  if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & (1u << 5))) return 0;  // LZCNT
  const unsigned second = (1u << 3) | (1u << 5) | (1u << 8);                   // BMI1, AVX2, BMI2
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & second) != second) return 0;
  const unsigned avx512 = (1u << 16) | (1u << 17) | (1u << 28) | (1u << 30) | (1u << 31);  // F, DQ, CD, BW, VL
  return (low & 0xe6) == 0xe6 && (b & avx512) == avx512 ? 2 : 1;
}
#endif

}  // namespace
}  // namespace mistrnn

using namespace mistrnn;

#define MISTRNN_EXPORT extern "C" __attribute__((visibility("default")))
#if defined(__x86_64__)
#define MISTRNN_AT(level, what) ((level) == 2 ? avx512::what : (level) == 1 ? avx2::what : base::what)
#else
#define MISTRNN_AT(level, what) base::what
#endif

// The names of the cells in the order of `Call::cell`; a null pointer ends the list.
MISTRNN_EXPORT const char* const* mistrnn_cell_names() {
  static const char* const names[] = {
#define CELL(index, name, Class) name,
#include "cells.inc"
#undef CELL
      nullptr};
  return names;
}

struct Field {
  const char *of, *name;
  int64_t offset, size;
};

// The fields of all structs that Python mirrors; a null name ends the list.
MISTRNN_EXPORT const Field* mistrnn_fields() {
  static const Field fields[] = {
#define FIELD(Struct, path, name) {#Struct, name, offsetof(Struct, path), sizeof(Struct::path)},
#include "fields.inc"
#undef FIELD
      {nullptr, nullptr, 0, 0}};
  return fields;
}

// The best instruction set that runs here: 0 base, 1 AVX2, 2 AVX-512.
MISTRNN_EXPORT int64_t mistrnn_best_level() {
#if defined(__x86_64__)
  return best_level();
#else
  return 0;
#endif
}

MISTRNN_EXPORT int64_t mistrnn_run(const Call* call, int64_t is_backward, [[maybe_unused]] int64_t level) {
  return MISTRNN_AT(level, run(*call, is_backward));
}

MISTRNN_EXPORT void* mistrnn_stream_new(const Call* call, [[maybe_unused]] int64_t level) {
  return MISTRNN_AT(level, new_stream(*call));
}

MISTRNN_EXPORT void mistrnn_stream_step(void* stream, const void* x, void* output, int64_t place) {
  base::stream_step(stream, x, output, place);  // the stream itself knows its instruction set
}

MISTRNN_EXPORT void mistrnn_stream_free(void* stream) { base::free_stream(stream); }

MISTRNN_EXPORT int64_t mistrnn_depthwise_conv(const DepthwiseConv* call, [[maybe_unused]] int64_t level) {
  return MISTRNN_AT(level, depthwise_conv(*call));
}

MISTRNN_EXPORT int64_t mistrnn_batch_norm(const BatchNorm* call, [[maybe_unused]] int64_t level) {
  return MISTRNN_AT(level, batch_norm(*call));
}

MISTRNN_EXPORT int64_t mistrnn_glu(const GatedUnit* call, [[maybe_unused]] int64_t level) {
  return MISTRNN_AT(level, glu(*call));
}

MISTRNN_EXPORT int64_t mistrnn_positive_counts(const PositiveCounts* call, [[maybe_unused]] int64_t level) {
  return MISTRNN_AT(level, positive_counts(*call));
}

MISTRNN_EXPORT void mistrnn_convolution_step(
    ConvolutionStep* call, const void* rows, int64_t rows_are_double, float* scores, [[maybe_unused]] int64_t level) {
  MISTRNN_AT(level, convolution_step(*call, rows, rows_are_double, scores));
}

// The width of a panel of a matrix.
MISTRNN_EXPORT int64_t mistrnn_panel_bytes([[maybe_unused]] int64_t level) { return MISTRNN_AT(level, panel_bytes()); }

MISTRNN_EXPORT void mistrnn_network_step(const Network* network, const void* input, int64_t input_is_double, void* scores) {
  MISTRNN_AT(network->level, network_step(*network, input, input_is_double, scores));
}
