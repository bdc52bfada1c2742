// Everything a network does besides convolution, one plane or one vector at a time.
//
// The same source (table.inl) is compiled once per instruction set; op_kernels(isa) gives the table of one set.
// All sets add in the same order and without contraction into fused multiply-adds, so they agree bit for bit:
// the winners of a gate never depend on the machine.
#pragma once
#include <cstdint>

#include "machine/cpu.h"
#include "run/planes.h"
#include "run/schema.h"
#include "run/window.h"

namespace penstock {

// True when f(0) = 0: the planes that are not stored stay zero.
constexpr bool keeps_zero(Function f) { return f != Function::sigmoid && f != Function::hardsigmoid; }

struct OpKernels {
  // Whether n values are all finite.
  bool (*all_finite)(const float* values, std::ptrdiff_t n);
  // Image plane (height x width, packed) into a plane with its padding; false when a value is not finite.
  bool (*import_plane)(const float* image, Planes shape, float* plane);
  // The packed values of a plane.
  void (*export_plane)(const float* plane, Planes shape, float* image);
  // ss(x) of the paper for one channel, the factor 1/(H W) included.
  float (*summarise)(const float* plane, Planes shape, Summary kind);
  // out[o] = bias[o] + sum over p of x[p] * rows[list[p]][o]; a null list means 0, 1, 2, ...
  void (*combine_rows)(const float* x, const std::int32_t* list, int count, const float* rows, const float* bias, int begin,
                       int end, std::int64_t width, float* out);
  // out[o] for o in [begin, end) = bias[o] + sum over p of dot(x[p], weights[o][list[p]]), `block` values a channel.
  void (*dot_blocks)(const float* x, const std::int32_t* list, int count, int block, const float* weights, const float* bias,
                     int begin, int end, std::int64_t width, float* out);
  // How many of the n values are >= threshold.
  int (*count_at_least)(const std::uint32_t* values, int n, std::uint32_t threshold);
  void (*pool)(const float* in, Planes in_shape, float* out, Planes out_shape, const PoolShape& shape, Pool kind);
  // Mean or maximum of rows [y0, y1) x columns [x0, x1).
  float (*reduce_window)(const float* plane, Planes shape, int y0, int y1, int x0, int x1, Pool kind);
  // out = f(a * scale + shift), padding zero.
  void (*affine)(const float* a, Planes a_shape, float scale, float shift, Function f, float slope, float* out, Planes out_shape);
  // out = f(a + b), padding zero.
  void (*add)(const float* a, Planes a_shape, const float* b, Planes b_shape, Function f, float slope, float* out,
              Planes out_shape);
  // out = f(a) for plain vectors.
  void (*apply)(const float* a, int n, Function f, float slope, float* out);
  // Normalises over channels at every pixel of rows [y0, y1): all `count` planes are read and written.
  void (*channel_norm)(const float* in, Planes in_shape, int count, const float* scale, const float* shift, float eps, int y0,
                       int y1, float* out, Planes out_shape);
};

const OpKernels& op_kernels(Isa isa);

// Zeroes what lies around the values of a plane.
void zero_padding(float* plane, Planes shape);

}  // namespace penstock
